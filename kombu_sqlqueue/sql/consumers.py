"""Who consumes from which queue, and how queues end."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, exists, func, or_, select, tuple_, update

from ..clock import microseconds
from .by_key import DeletesByKey
from .database import Database

__all__ = ["Consumers"]

#: Whoever declares a queue has this long to consume from it, even if others who did are lost.
CONSUME_WITHIN = timedelta(seconds=10)
#: Messages that a sweep deletes in one transaction.
BATCH = 1000


class Consumers:
    """The parts of routing that decide whether a queue is in use. Every method works in `tx`.

    Whoever writes anything about a queue locks its row first, so that none of it outlives the queue.
    """

    #: A declaration older than this, in microseconds, is written down again.
    reuse_after = microseconds(CONSUME_WITHIN) // 10

    def __init__(self, database: Database) -> None:
        self._database = database
        self._exchange = database.tables.exchange
        self._queue = database.tables.queue
        self._binding = database.tables.binding
        self._consumer = database.tables.consumer
        self._lessee = database.tables.lessee
        self._message = database.tables.message
        self._delete = DeletesByKey(database, self._message)

    def lock(self, tx: Connection, queue: str) -> Row[Any] | None:
        """The queue's row, held until the transaction ends; None if nobody declared it."""
        q = self._queue
        return tx.execute(select(q).where(q.c.name == queue).with_for_update()).one_or_none()

    def add(self, tx: Connection, queue: str, lessee: int) -> bool:
        """As `RoutingStore.consume`."""
        declared = self.lock(tx, queue) is not None
        c = self._consumer
        tx.execute(self._database.dialect.insert_missing(c, [{"queue": queue, "lessee": lessee, "consumers": 0}]))
        tx.execute(update(c).where(c.c.queue == queue, c.c.lessee == lessee).values(consumers=c.c.consumers + 1))
        return declared

    def remove(self, tx: Connection, queue: str, lessee: int) -> bool:
        """As `RoutingStore.cancel`."""
        row = self.lock(tx, queue)
        c = self._consumer
        ours = c.c.queue == queue, c.c.lessee == lessee
        tx.execute(update(c).where(*ours).values(consumers=c.c.consumers - 1))
        tx.execute(delete(c).where(*ours, c.c.consumers <= 0))
        if row is None:
            return False
        if (row.auto_delete or row.exclusive) and not self.count(tx, queue):
            self._end(tx, row)
            return True
        self._use(tx, [queue])
        return False

    def count(self, tx: Connection, queue: str) -> int:
        """How many consumers the queue has, those of lost lessees left out."""
        c = self._consumer
        alive = select(func.coalesce(func.sum(c.c.consumers), 0)).where(c.c.queue == queue, self._lives())
        return int(tx.execute(alive).scalar_one())

    def delete_queue(self, tx: Connection, queue: str, *, if_unused: bool, if_empty: bool) -> int | None:
        """As `RoutingStore.delete_queue`."""
        self.lock(tx, queue)
        if if_unused and self.count(tx, queue):
            return None
        m = self._message
        if if_empty and any(tx.execute(select(m.c.id).where(*which).limit(1)).first() for which in self._waiting(queue)):
            return None
        deleted = sum(self._delete.where(tx, *which) for which in self._waiting(queue))
        self._forget(tx, queue)
        return deleted

    def unbind(self, tx: Connection, *which: ColumnElement[bool]) -> int:
        """Delete bindings, and the auto-delete exchanges that have none left; returns how many bindings."""
        b, e = self._binding, self._exchange
        left = select(b.c.exchange).where(*which)
        # Of two that delete the last two bindings at once, the one to come second must see it.
        may_go = select(e.c.name).where(e.c.name.in_(left), e.c.auto_delete == 1).order_by(e.c.name).with_for_update()
        exchanges = tx.execute(may_go).scalars().all()
        deleted = tx.execute(delete(b).where(*which)).rowcount
        if exchanges:
            unbound = ~exists().where(b.c.exchange == e.c.name)
            tx.execute(delete(e).where(e.c.name.in_(exchanges), unbound))
        return deleted

    def sweep(self, limit: int) -> list[str]:
        """As `RoutingStore.sweep`. Not in one transaction: messages by the thousand go in batches."""
        q = self._queue
        doomed = select(q.c.name).where(self._is_doomed()).limit(limit)
        for queue in self._database.statement(lambda tx: tx.execute(doomed).scalars().all()):
            self._empty(queue)
        return self._database.run(lambda tx: self._sweep(tx, limit))

    def has_unused(self) -> ColumnElement[bool]:
        """Whether there is a queue that nobody misses, or a consumer that is lost."""
        doomed = select(self._queue.c.name).where(self._is_doomed())
        return or_(doomed.exists(), select(self._consumer.c.queue).where(*self._lost()).exists())

    def _sweep(self, tx: Connection, limit: int) -> list[str]:
        q = self._queue
        doomed = select(q).where(self._is_doomed()).order_by(q.c.name).limit(limit).with_for_update(skip_locked=True)
        rows = tx.execute(doomed).all()
        for row in rows:
            self._end(tx, row)
        self._forget_lost(tx, limit)
        return sorted(row.name for row in rows)

    def _forget_lost(self, tx: Connection, limit: int) -> None:
        c = self._consumer
        lost = select(c.c.queue, c.c.lessee).where(*self._lost()).limit(limit).with_for_update(skip_locked=True)
        pairs = [tuple(row) for row in tx.execute(lost)]
        if pairs:
            tx.execute(delete(c).where(tuple_(c.c.queue, c.c.lessee).in_(pairs)))
            self._use(tx, {queue for queue, _ in pairs})

    def _empty(self, queue: str) -> None:
        while self._database.run(lambda tx: self._empty_some(tx, queue)) == BATCH:
            pass

    def _empty_some(self, tx: Connection, queue: str) -> int:
        m, q = self._message, self._queue
        if not tx.execute(select(q.c.name).where(q.c.name == queue, self._is_doomed())).first():
            return 0
        ready = select(m.c.id).where(m.c.queue == queue, m.c.position.is_not(None)).limit(BATCH)
        return self._delete(tx, tx.scalars(ready.with_for_update(skip_locked=True)).all())

    def _end(self, tx: Connection, row: Row[Any]) -> None:
        """Delete a queue that nobody consumes from any more."""
        m = self._message
        ready, delayed = self._waiting(row.name)
        leased = m.c.lessee.is_not(None), m.c.started_at.is_(None), m.c.queue == row.name
        # No index leads to the delayed ones of one queue, and those with a TTL soon go by themselves.
        for which in (ready, leased) if row.message_ttl is not None else (ready, leased, delayed):
            self._delete.where(tx, *which)
        tx.execute(delete(self._consumer).where(self._consumer.c.queue == row.name))
        self._forget(tx, row.name)

    def _forget(self, tx: Connection, queue: str) -> None:
        # Not its lanes: publishers remember which lanes there are, and may fill the queue again.
        self.unbind(tx, self._binding.c.queue == queue)
        tx.execute(delete(self._queue).where(self._queue.c.name == queue))

    def _use(self, tx: Connection, queues: Collection[str]) -> None:
        q = self._queue
        tx.execute(update(q).where(q.c.name.in_(queues)).values(used_at=self._database.now()))

    # -- conditions -----------------------------------------------------------------------

    def _waiting(self, queue: str) -> tuple[tuple[ColumnElement[bool], ...], ...]:
        """Ready and delayed messages, apart: each has an index of its own."""
        m = self._message.c
        return (m.queue == queue, m.position.is_not(None)), (m.queue == queue, m.due_at.is_not(None))

    def _lost(self) -> tuple[ColumnElement[bool], ...]:
        """That a consumer may be forgotten."""
        c, q = self._consumer, self._queue
        # The last ones of a queue that dies with its consumers are what tells that it had any.
        spared = exists().where(q.c.name == c.c.queue, self._dies_with_consumers(), ~self._is_consumed())
        return ~self._lives(), ~spared

    def _lives(self) -> ColumnElement[bool]:
        c, lessee = self._consumer, self._lessee
        return exists().where(lessee.c.id == c.c.lessee, lessee.c.lost_at.is_(None))

    def _is_doomed(self) -> ColumnElement[bool]:
        q, now = self._queue, self._database.now()
        had_consumers = exists().where(self._consumer.c.queue == q.c.name)
        expired = and_(q.c.used_at <= now - q.c.expires_for, ~had_consumers)
        unused = q.c.used_at <= now - microseconds(CONSUME_WITHIN)
        orphaned = and_(self._dies_with_consumers(), had_consumers, ~self._is_consumed(), unused)
        return or_(expired, orphaned)

    def _is_consumed(self) -> ColumnElement[bool]:
        """That somebody alive consumes from the queue of the surrounding statement."""
        c, lessee = self._consumer.alias("living"), self._lessee
        alive = c.join(lessee, and_(lessee.c.id == c.c.lessee, lessee.c.lost_at.is_(None)))
        return exists(select(c.c.queue).select_from(alive).where(c.c.queue == self._queue.c.name))

    def _dies_with_consumers(self) -> ColumnElement[bool]:
        return or_(self._queue.c.auto_delete == 1, self._queue.c.exclusive == 1)
