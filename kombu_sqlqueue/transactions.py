"""Sending tasks in a transaction of the caller's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .sql.lending import Loan, apart, current_loan, is_inside, lent

__all__ = ["apart", "current", "in_transaction", "is_inside"]


@contextmanager
def in_transaction(connection: Any) -> Iterator[None]:
    """Send what is sent inside as part of the transaction of `connection`: it is there once that commits,
    and never was if it rolls back.

    ``delay()``, ``apply_async()``, chains, groups, chords and `bulk_publish` all do. The transaction
    remains the caller's, to commit or to roll back, here inside or later; savepoints work as they do
    for his own rows. `connection` is a SQLAlchemy Session or Connection, Django's
    ``django.db.connection``, or a connection of psycopg, psycopg2, mysqlclient, PyMySQL or sqlite3. It must
    lead to the broker's database.

    Raises TransactionNotSupportedError if it does not, has no transaction, or is async. Inside, sending
    raises TransactionFailedError if the transaction breaks; nothing is tried again in it.
    """
    from . import outbox, replacing

    outbox.install()
    replacing.install()
    with lent(Loan(_of_django(connection))):
        yield


def current() -> Loan | None:
    """The transaction that this thread or task sends in, None outside of `in_transaction`."""
    return current_loan()


def _of_django(connection: Any) -> Any:
    """The driver's connection, if this is one of Django's; anything else as it is."""
    if not hasattr(connection, "in_atomic_block"):
        return connection
    connection.ensure_connection()
    return connection.connection
