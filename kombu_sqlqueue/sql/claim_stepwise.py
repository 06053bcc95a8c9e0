"""A claim as a few statements in one transaction, for databases where the one of `claim_lateral` cannot be said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, bindparam, func, select, update

from .by_key import by_key
from .database import Database
from .dialect import Capability
from .direct import Direct
from .floors import Lane
from .work import Work

__all__ = ["StepwiseClaim"]


class StepwiseClaim:
    """Takes ready messages lane by lane, from the head of each: a deleted index entry is gone at once here."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect = database.dialect
        m, lane, lessee = database.tables.message, database.tables.lane, database.tables.lessee
        skip_locked = Capability.SKIP_LOCKED in database.dialect.capabilities
        any_ready = select(m.c.id).where(self._dialect.given(m.c.queue, "asked"), m.c.position.is_not(None)).limit(1)
        lanes = select(lane.c.queue, lane.c.priority).where(self._dialect.given(lane.c.queue, "asked"))
        expired = func.coalesce(m.c.expires_at <= database.now(), False).label("expired")
        columns = (
            m.c.id,
            (m.c.deliveries + 1).label("deliveries"),
            m.c.queue,
            m.c.priority,
            m.c.position,
            expired,
            m.c.reclaims,
            m.c.envelope,
            m.c.body,
        )
        of_lane = (
            select(*columns)
            .where(
                m.c.queue == bindparam("lane_queue"),
                m.c.priority == bindparam("lane_priority"),
                m.c.position.is_not(None),
            )
            .order_by(m.c.position)
            .limit(bindparam("room", type_=Integer))
            .with_for_update(skip_locked=skip_locked)
        )
        alive = select(lessee.c.id).where(lessee.c.id == bindparam("taker"), lessee.c.lost_at.is_(None)).exists()
        lease = (
            update(m)
            .where(self._dialect.given(m.c.id, "taken"), alive)
            .values(
                position=None,
                lessee=bindparam("taker", type_=BigInteger),
                begun_at=None,
                deliveries=m.c.deliveries + 1,
            )
        )
        # A look that disturbs no writer; where locked rows are skipped the claim itself disturbs none.
        self._looks_first = not skip_locked
        self._any = Direct(database, any_ready)
        self._lanes = Direct(database, lanes)
        self._of_lane = Direct(database, of_lane)
        self._lease = Direct(database, by_key(lease))

    def take(
        self, work: Work, queues: Sequence[str], *, share: int, room: int, lessee: int, start: Mapping[Lane, int]
    ) -> Sequence[Any]:
        """Lease up to `room` messages, up to `share` of each queue, the first queues first."""
        if self._looks_first and not work.statement(lambda tx: self._any_ready(tx, queues)):
            return []
        return work.run(lambda tx: self._take(tx, queues, share, room, lessee))

    def _take(self, tx: Connection, queues: Sequence[str], share: int, room: int, lessee: int) -> Sequence[Any]:
        taken: list[Any] = []
        priorities = self._priorities(tx, queues)
        for queue in queues:
            left = min(share, room - len(taken))
            for priority in priorities[queue]:
                if left:
                    found = self._of_lane(tx, {"lane_queue": queue, "lane_priority": priority, "room": left})
                    taken += found
                    left -= len(found)
        if not taken:
            return []
        leased = self._lease.count(tx, {"taker": lessee, **self._dialect.packed("taken", 1, [(row.id,) for row in taken])})
        return taken if leased else []

    def _any_ready(self, tx: Connection, queues: Sequence[str]) -> bool:
        """Whether a claim would find something."""
        return bool(self._any(tx, self._dialect.packed("asked", 1, [(queue,) for queue in queues])))

    def _priorities(self, tx: Connection, queues: Sequence[str]) -> dict[str, list[int]]:
        """The priorities in use in each queue, the highest first."""
        used: dict[str, set[int]] = defaultdict(lambda: {0})
        for queue, priority in self._lanes(tx, self._dialect.packed("asked", 1, [(queue,) for queue in queues])):
            used[queue].add(priority)
        return {queue: sorted(used[queue], reverse=True) for queue in queues}
