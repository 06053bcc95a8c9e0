"""Transactions that others lend us: we write in them, they end them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .borrowing import borrowed, has_begun, transaction_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from .database import Database

__all__ = ["Loan", "apart", "current_loan", "inside", "is_apart", "is_inside", "lent"]


class Loan:
    """A transaction that is lent to us, and what was sent in it."""

    def __init__(self, given: Any) -> None:
        """Raises TransactionNotSupportedError if `given` is nothing that we can write on, or has no transaction."""
        borrowed(given)
        self._given = given
        self._lent_to = _caller()
        self._is_of: dict[Database, bool] = {}
        self._sent: set[str] = set()
        self._sent_in: object = None
        #: The block has been left: what has inherited the loan since is on its own.
        self.is_over = False

    @property
    def is_ours(self) -> bool:
        """Whether it was lent to this very thread and asyncio task, and still is. Others inherit the context, not the connection."""
        return not self.is_over and self._lent_to == _caller()

    def connection(self, database: Database) -> Connection | None:
        """What to write on, if the transaction is one of this database."""
        # Anew each time: the caller may have ended one transaction and begun another.
        connection = borrowed(self._given)
        if database not in self._is_of:
            self._is_of[database] = False  # It asks the database itself, which may come here.
            self._is_of[database] = database.is_seen_by(connection)
        return connection if self._is_of[database] else None

    def note(self, task_ids: Iterable[str]) -> None:
        """These tasks were sent in the transaction."""
        self._forget_earlier()
        self._sent.update(task_ids)

    @property
    def unsent(self) -> frozenset[str]:
        """The tasks that nobody sees before the transaction ends."""
        self._forget_earlier()
        return frozenset(self._sent)

    def _forget_earlier(self) -> None:
        """One transaction may have ended since, and another begun."""
        transaction = transaction_of(self._given)
        if not has_begun(self._given) or transaction is not self._sent_in:
            self._sent.clear()
        self._sent_in = transaction


_loan: ContextVar[Loan | None] = ContextVar("loan", default=None)
_inside: ContextVar[bool] = ContextVar("inside", default=False)
_apart: ContextVar[bool] = ContextVar("apart", default=False)


def current_loan() -> Loan | None:
    """The transaction that was lent to this thread or task, if it may write in it."""
    loan = _loan.get()
    return loan if loan is not None and loan.is_ours and not _apart.get() else None


@contextmanager
def lent(loan: Loan) -> Iterator[None]:
    """Let this thread or task write in it."""
    token = _loan.set(loan)
    try:
        yield
    finally:
        loan.is_over = True
        _loan.reset(token)


@contextmanager
def inside() -> Iterator[None]:
    """While a transaction of our own is open that others of this thread or task take part in."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def is_inside() -> bool:
    return _inside.get()


def is_apart() -> bool:
    """Whether this thread or task is inside `apart`."""
    return _apart.get()


@contextmanager
def apart() -> Iterator[None]:
    """Let this thread or task write in transactions of its own, whatever is lent to it."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


def _caller() -> tuple[int, object]:
    """This thread and asyncio task."""
    asyncio = sys.modules.get("asyncio")
    try:
        task = asyncio.current_task() if asyncio is not None else None
    except RuntimeError:
        task = None
    return threading.get_ident(), task
