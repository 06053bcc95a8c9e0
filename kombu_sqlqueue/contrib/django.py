"""Django: tasks that are sent inside ``atomic()`` are part of it, for who has opted in with the option `django_alias`."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from django.db import connections

from ..sql.lending import Loan

__all__ = ["AtomicBlocks"]


class AtomicBlocks:
    """Finds the transaction that Django has begun in this thread or task on the database of one alias."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._loans: WeakKeyDictionary[Any, tuple[object, Loan]] = WeakKeyDictionary()

    def __call__(self) -> Loan | None:
        connection = connections[self._alias]
        if not connection.in_atomic_block:
            return None
        # Django begins another list with each transaction.
        transaction = connection.run_on_commit
        known, loan = self._loans.get(connection, (None, None))
        if loan is None or known is not transaction:
            loan = Loan(connection.connection)
            self._loans[connection] = transaction, loan
        return loan
