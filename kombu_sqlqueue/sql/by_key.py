"""Changing rows by their ids, without touching any other.

MySQL's planner reads a small table from end to end instead, and waits there for each row that
somebody's open transaction has put in or changed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, Update, bindparam, delete, select

from .dialect import Capability
from .direct import Direct

if TYPE_CHECKING:
    from .database import Database

__all__ = ["DeletesByKey", "by_key", "locks_by_key"]

S = TypeVar("S", bound=Select[Any])

HINT = "FORCE INDEX (PRIMARY)"


def by_key(change: Update) -> Update:
    """An UPDATE whose condition lists the ids."""
    return change.with_hint(HINT, dialect_name="mysql")


def locks_by_key(query: S, table: Table) -> S:
    """A SELECT of the table that locks what it finds and whose condition lists the ids."""
    return query.with_hint(table, HINT, "mysql")


class DeletesByKey:
    """Deletes rows of a table by their ids: one statement, or where that may touch others one for each."""

    def __init__(self, database: Database, table: Table, *, unhurried: bool = False) -> None:
        """`unhurried`, commits need not wait for the disk."""
        self._dialect = database.dialect
        self.at_once = Capability.GOES_BY_KEY in database.dialect.capabilities
        also = [database.unhurried()] if unhurried else []
        self._all = Direct(database, delete(table).where(database.dialect.given(table.c.id, "ids"), *also))
        self._one = Direct(database, delete(table).where(table.c.id == bindparam("id")))
        self._table = table

    def __call__(self, tx: Connection, ids: Collection[int]) -> int:
        """The answer is how many there were."""
        if self.at_once:
            return self._all.count(tx, self._dialect.packed("ids", 1, [(id,) for id in ids]))
        return sum(self._one.count(tx, {"id": id}) for id in ids)

    def where(self, tx: Connection, *which: ColumnElement[bool]) -> int:
        """Delete those; where that could wait for others, only those that nobody has locked."""
        if self.at_once:
            return tx.execute(delete(self._table).where(*which)).rowcount
        found = select(self._table.c.id).where(*which).with_for_update(skip_locked=True)
        return self(tx, tx.scalars(found).all())
