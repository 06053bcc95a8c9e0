"""How a store does its work: in transactions of its own, or in the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from .database import Database
from .dialect import Capability

__all__ = ["Work"]

T = TypeVar("T")


class Work:
    """Runs what a store does. With a `connection` everything takes part in that one's transaction."""

    def __init__(self, database: Database, connection: Connection | None = None) -> None:
        self._database = database
        self._connection = connection

    @property
    def own(self) -> bool:
        """Whether transactions are our own to commit."""
        return self._connection is None

    @property
    def losses(self) -> int:
        """As `Database.losses`."""
        return self._database.losses

    def run(self, work: Callable[[Connection], T], *, repeatable: bool = True, joins: bool = False) -> T:
        """As `Database.run`."""
        if self._connection is None:
            return self._database.run(work, repeatable=repeatable, joins=joins)
        return self._within(self._connection, work)

    def statement(self, work: Callable[[Connection], T]) -> T:
        """As `Database.statement`."""
        if self._connection is None:
            return self._database.statement(work)
        return self._within(self._connection, work)

    def change(self, work: Callable[[Connection], T]) -> T:
        """Do `work`, which changes rows and tells which: one statement, or a transaction where that takes two."""
        one = Capability.UPDATE_RETURNING in self._database.dialect.capabilities
        return self.statement(work) if one else self.run(work)

    def _within(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        with self._database.translated():
            return work(connection)
