"""Messages that wait: for their time, for a consumer, or to be counted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, String, bindparam, func, literal, select, union_all

from ..messages import Promoted, QueueCounts
from ..topics import queue_topic
from .by_key import DeletesByKey
from .database import Database
from .dialect import Capability
from .direct import Direct
from .positions import Positions

__all__ = ["Waiting"]

NOW = timedelta(0)


class Waiting:
    """Looks after messages that nobody holds."""

    def __init__(self, database: Database, positions: Positions) -> None:
        self._database = database
        self._positions = positions
        self._message = database.tables.message
        self._dead = database.tables.dead
        self._forget = DeletesByKey(database, self._message)
        self._skip_locked = Capability.SKIP_LOCKED in database.dialect.capabilities

        due_at = self._message.c.due_at
        first_due = select(due_at - database.now()).where(due_at.is_not(None)).order_by(due_at).limit(1)
        self._first_due = Direct(database, first_due)
        self._promoting: dict[int, Direct | None] = {}

    def promoting(self, limit: int) -> Callable[[Connection, str | None], Promoted] | None:
        """`promote` as one statement; None where it takes more."""
        if limit not in self._promoting:
            m = self._message
            write = self._positions.placing(self._due(), m.c.due_at, m.c.id, most=limit, values={"due_at": None})
            one = None if write is None else self._database.promoting(write, by=bindparam("by", type_=String))
            self._promoting[limit] = None if one is None else Direct(self._database, one)
        statement = self._promoting[limit]
        if statement is None:
            return None

        def promote(tx: Connection, by: str | None) -> Promoted:
            ((ready, queues, left, _),) = statement(tx, {"by": by or ""})
            return Promoted(ready, frozenset(queues or ()), _duration(left))

        return promote

    def _due(self) -> Select[int]:
        return select(self._message.c.id).where(self._message.c.due_at <= self._database.now())

    def promote(self, tx: Connection, limit: int) -> Promoted:
        m = self._message
        due_in = self.next_due(tx)
        if due_in is None or due_in > NOW:
            # Of all who wake up at a due moment one is the first.
            return Promoted(due_in=due_in)
        rows = self._positions.place(
            tx, self._due(), m.c.due_at, m.c.id, most=limit, values={"due_at": None}, tells=[m.c.queue]
        )
        queues = frozenset(row.queue for row in rows)
        self._database.announce(tx, {queue_topic(queue) for queue in queues})
        return Promoted(len(rows), queues, self.next_due(tx))

    def next_due(self, tx: Connection) -> timedelta | None:
        for (left,) in self._first_due(tx, {}):
            return _duration(left)
        return None

    def expire(self, tx: Connection, limit: int) -> int:
        return self._delete(tx, *self._expired(), order=self._message.c.expires_at, limit=limit)

    def has_expired(self) -> ColumnElement[bool]:
        """Whether `expire` would find any."""
        m = self._message.c
        return select(m.id).where(*self._expired()).order_by(m.expires_at).limit(1).scalar_subquery().is_not(None)

    def _expired(self) -> tuple[ColumnElement[bool], ...]:
        m = self._message.c
        return m.expires_at <= self._database.now(), m.lessee.is_(None)

    def purge(self, tx: Connection, queue: str, limit: int) -> int:
        """Delete up to `limit` of what waits in the queue."""
        m = self._message.c
        ready = self._delete(tx, m.queue == queue, m.position.is_not(None), limit=limit)
        return ready or self._delete(tx, m.queue == queue, m.due_at.is_not(None), limit=limit)

    def counts(self, tx: Connection, queues: Collection[str] | None) -> list[QueueCounts]:
        found: dict[str, QueueCounts] = {}
        for queue, state, messages in tx.execute(self._count(queues)):
            found[queue] = replace(found.get(queue, QueueCounts(queue)), **{state: messages})
        return [found[queue] for queue in sorted(found)]

    def _count(self, queues: Collection[str] | None) -> Any:
        m, d = self._message.c, self._dead.c
        states: dict[str, tuple[ColumnElement[str], tuple[ColumnElement[bool], ...]]] = {
            "ready": (m.queue, (m.position.is_not(None),)),
            "delayed": (m.queue, (m.due_at.is_not(None),)),
            "leased": (m.queue, (m.lessee.is_not(None), m.started_at.is_(None))),
            "started": (m.queue, (m.lessee.is_not(None), m.started_at.is_not(None))),
            "dead": (d.queue, ()),
        }
        # One by one, as each state has an index of its own.
        return union_all(*(_counted(state, *of, queues) for state, of in states.items()))

    def _delete(
        self, tx: Connection, *which: ColumnElement[bool], limit: int, order: ColumnElement[Any] | None = None
    ) -> int:
        m = self._message
        found = select(m.c.id).where(*which).limit(limit).with_for_update(skip_locked=self._skip_locked)
        if order is not None:
            found = found.order_by(order)
        ids = tx.scalars(found).all()
        return self._forget(tx, ids) if ids else 0


def _duration(left: int | None) -> timedelta | None:
    """So many microseconds, none if they are over."""
    return None if left is None else timedelta(microseconds=max(0, left))


def _counted(
    state: str, queue: ColumnElement[str], which: Collection[ColumnElement[bool]], queues: Collection[str] | None
) -> Select[*tuple[Any, ...]]:
    counted = select(queue, literal(state, String), func.count()).where(*which).group_by(queue)
    return counted if queues is None else counted.where(queue.in_(queues))
