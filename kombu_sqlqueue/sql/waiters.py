"""Who waits for what: rows that tell a publisher whether an announcement would be heard."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import ColumnElement, delete, exists

from ..clock import microseconds
from .database import Database
from .dialect import Capability

__all__ = ["SQLWaiters"]


class SQLWaiters:
    """The waiters of one database. Where nobody can be notified they are not recorded."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.tables.waiter

    @property
    def needed(self) -> bool:
        return self._database.options.listen and Capability.LISTEN_NOTIFY in self._database.dialect.capabilities

    def arm(self, waiter: str, topics: Collection[str], *, armed_for: timedelta) -> None:
        """Record that `waiter` wants to hear `topics` for the next `armed_for`."""
        until = self._database.now() + microseconds(armed_for)
        rows = [{"topic": topic, "waiter": waiter, "expires_at": until} for topic in sorted(topics)]
        if rows:
            upsert = self._database.dialect.upsert(self._table, rows, update=["expires_at"])
            self._database.statement(lambda tx: tx.execute(upsert))

    def disarm(self, waiter: str) -> None:
        """`waiter` is busy or gone: nobody needs to announce anything to it."""
        t = self._table
        self._database.statement(lambda tx: tx.execute(delete(t).where(t.c.waiter == waiter)))

    @property
    def has_expired(self) -> ColumnElement[bool]:
        """Whether `prune` would find any."""
        return exists().where(self._table.c.expires_at < self._database.now())

    def prune(self) -> None:
        """Forget waiters that did not come back."""
        t = self._table
        self._database.statement(lambda tx: tx.execute(delete(t).where(t.c.expires_at < self._database.now())))
