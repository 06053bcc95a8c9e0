"""Who holds leases, until when they count as alive, and what becomes of the messages of the dead."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, or_, select, update

from ..clock import microseconds
from ..messages import Reason, Reclaimed
from ..topics import queue_topic
from .database import Database
from .dead import Dead, taken_back
from .dialect import Capability
from .positions import Positions

__all__ = ["Lessees", "fate", "lease_ends_at"]

#: A lessee taken for dead is remembered this long at least: it may only be asleep, and must be told.
REMEMBERED_FOR = timedelta(hours=1)


def fate(*, started: bool, reclaims: int, max_reclaims: int) -> Reason | None:
    """Why a message dies that was lost with its holder after so many reclaims; None if it lives."""
    if started:
        return Reason.WORKER_LOST
    return Reason.RECLAIMS if reclaims >= max_reclaims else None


def lease_ends_at(database: Database) -> ColumnElement[int]:
    """When a lease ends. While the database was down nobody could renew: all have a whole lease from its start."""
    l, started_at = database.tables.lessee.c, database.started_at()
    if started_at is None:
        return l.expires_at
    return func.greatest(l.expires_at, started_at + l.lease_for)


class Lessees:
    """The processes that hold leases."""

    def __init__(self, database: Database, positions: Positions, dead: Dead) -> None:
        self._database = database
        self._positions = positions
        self._dead = dead
        self._lessee = database.tables.lessee
        self._message = database.tables.message
        self._skip_locked = Capability.SKIP_LOCKED in database.dialect.capabilities

    def enrol(self, tx: Connection, name: str, lease_for: timedelta) -> int:
        until = self._database.now() + microseconds(lease_for)
        row = insert(self._lessee).values(name=name, lease_for=microseconds(lease_for), expires_at=until)
        return int(tx.execute(row).inserted_primary_key[0])  # type: ignore[index]

    def renew(self, tx: Connection, lessee: int) -> bool:
        l = self._lessee
        alive = update(l).where(l.c.id == lessee, l.c.lost_at.is_(None))
        return tx.execute(alive.values(expires_at=self._database.now() + l.c.lease_for)).rowcount == 1

    def resign(self, tx: Connection, lessee: int) -> None:
        l, m = self._lessee, self._message
        holds = select(m.c.id).where(m.c.lessee == l.c.id).exists()
        if not tx.execute(delete(l).where(l.c.id == lessee, ~holds)).rowcount:
            tx.execute(update(l).where(l.c.id == lessee, l.c.lost_at.is_(None)).values(lost_at=self._database.now()))

    def next_expiry(self, tx: Connection) -> timedelta | None:
        l, m, now = self._lessee.c, self._message.c, self._database.now()
        left_behind = select(m.id).where(m.lessee == l.id).exists()
        ends_at = case((l.lost_at.is_(None), lease_ends_at(self._database)), else_=now)
        first = select(func.min(ends_at) - now).where(or_(l.lost_at.is_(None), left_behind))
        left = tx.scalar(first)
        return None if left is None else timedelta(microseconds=max(0, left))

    def now(self, tx: Connection) -> int:
        """The database's time, in microseconds."""
        return int(tx.execute(select(self._database.now())).scalar_one())

    def reclaim(self, tx: Connection, *, asked_at: int, max_reclaims: int, limit: int) -> Reclaimed:
        """As `MessageStore.reclaim`, of those whose lease had ended at `asked_at`."""
        self._take_for_dead(tx, asked_at)
        fates, innocent = self._fates(tx, max_reclaims, limit)
        self._dead.move(tx, {id: reason for id, reason in fates.items() if reason}, report=True)
        self._put_back(tx, [id for id, reason in fates.items() if reason is None and id not in innocent], cost=1)
        self._put_back(tx, [id for id, reason in fates.items() if reason is None and id in innocent], cost=0)
        self._forget(tx)
        dead = sum(reason is not None for reason in fates.values())
        return Reclaimed(ready=len(fates) - dead, dead=dead)

    def _take_for_dead(self, tx: Connection, asked_at: int) -> None:
        l, now = self._lessee, self._database.now()
        silent = select(l.c.id).where(l.c.lost_at.is_(None), lease_ends_at(self._database) <= asked_at)
        # One that is renewing itself just now is not silent.
        ids = tx.scalars(silent.with_for_update(skip_locked=self._skip_locked)).all()
        if ids:
            tx.execute(update(l).where(l.c.id.in_(ids)).values(lost_at=now))

    def _fates(self, tx: Connection, max_reclaims: int, limit: int) -> tuple[dict[int, Reason | None], set[int]]:
        """Messages of the dead, locked, what becomes of them, and which had no part in their holder's death."""
        l, m, other, dialect = self._lessee, self._message, self._message.alias("other"), self._database.dialect
        lost = tx.scalars(select(l.c.id).where(l.c.lost_at.is_not(None))).all()
        if not lost:
            return {}, set()
        ran = or_(m.c.begun_at.is_not(None), m.c.started_at.is_not(None))
        someone_ran = (
            select(other.c.id)
            .where(other.c.lessee == m.c.lessee, or_(other.c.begun_at.is_not(None), other.c.started_at.is_not(None)))
            .exists()
        )
        left_behind = (
            select(m.c.id, m.c.reclaims, m.c.started_at, and_(~ran, someone_ran).label("innocent"))
            .where(dialect.given(m.c.lessee, "lost"))
            # Not by id alone: a planner in a hurry would go through the primary key in search of the first few.
            .order_by(m.c.lessee, m.c.id)
            .limit(limit)
            .with_for_update(skip_locked=self._skip_locked, of=m)
        )
        rows = tx.execute(left_behind, dialect.packed("lost", 1, [(id,) for id in lost])).all()
        innocent = {row.id for row in rows if row.innocent}
        fates = {
            row.id: fate(started=row.started_at is not None, reclaims=row.reclaims, max_reclaims=max_reclaims)
            for row in rows
            if row.id not in innocent
        }
        return fates | dict.fromkeys(innocent), innocent

    def _put_back(self, tx: Connection, ids: list[int], *, cost: int) -> None:
        if not ids:
            return
        m, dialect = self._message, self._database.dialect
        mine = select(m.c.id).where(dialect.given(m.c.id, "ids"))
        rows = self._positions.place(
            tx,
            mine,
            m.c.id,
            most=len(ids),
            values=taken_back(self._database) if cost else {"lessee": None},
            tells=[m.c.queue],
            surely=dialect.given(m.c.id, "ids"),
            parameters=dialect.packed("ids", 1, [(id,) for id in ids]),
            ahead=True,
        )
        self._database.announce(tx, {queue_topic(row.queue) for row in rows})

    def _forget(self, tx: Connection) -> None:
        l, m = self._lessee, self._message
        long_ago = self._database.now() - microseconds(REMEMBERED_FOR)
        holds = select(m.c.id).where(m.c.lessee == l.c.id).exists()
        tx.execute(delete(l).where(l.c.lost_at < long_ago, ~holds))
