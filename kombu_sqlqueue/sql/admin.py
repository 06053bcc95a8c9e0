"""What operators ask: looking, not changing. These queries read whole tables; nothing else calls them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, not_, select

from ..messages import DeadMessage
from .database import Database
from .dead import as_dead_message, may_return

__all__ = ["SQLAdmin"]


class SQLAdmin:
    """Readings of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def oldest_ready(self) -> dict[str, float]:
        """For each queue how many seconds ago its oldest ready message was published."""
        m = self._tables.message.c
        age = (self._database.now() - func.min(m.published_at)) / 1_000_000.0
        ready = select(m.queue, age).where(m.position.is_not(None)).group_by(m.queue)
        return {queue: float(seconds) for queue, seconds in self._database.statement(lambda tx: tx.execute(ready).all())}

    def dead(self, *, queue: str | None = None, limit: int) -> list[DeadMessage]:
        """The latest dead messages, of one queue or of all."""
        d = self._tables.dead
        latest = select(d).order_by(d.c.died_at.desc(), d.c.id.desc()).limit(limit)
        if queue is not None:
            latest = latest.where(d.c.queue == queue)
        return [as_dead_message(row) for row in self._database.statement(lambda tx: tx.execute(latest).all())]

    def dead_ids(self, queue: str, *, limit: int) -> list[int]:
        """Dead messages of the queue that may be redriven, those that died first."""
        d = self._tables.dead
        first = select(d.c.id).where(d.c.queue == queue, may_return(d)).order_by(d.c.died_at).limit(limit)
        return list(self._database.statement(lambda tx: tx.scalars(first).all()))

    def owners_told(self, *, ids: Collection[int] = (), queue: str | None = None) -> set[str]:
        """Whose dead messages, among these or of the queue, may not be redriven: their owners know of their end."""
        d = self._tables.dead
        which = d.c.id.in_(ids) if queue is None else d.c.queue == queue
        told = select(d.c.owner).where(which, not_(may_return(d))).distinct()
        return set(self._database.statement(lambda tx: tx.scalars(told).all()))
