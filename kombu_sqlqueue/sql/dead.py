"""Messages set aside after their last delivery, in a table of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    update,
)

from ..clock import microseconds
from ..messages import DeadMessage, Lease, Outcome, Reason
from ..topics import queue_topic
from .by_key import DeletesByKey
from .database import Database
from .dialect import Capability
from .positions import Positions

__all__ = ["Dead", "as_dead_message", "may_return", "taken_back"]

#: Columns that a message keeps when it dies, and when it comes back.
KEPT = ("id", "queue", "priority", "deliveries", "published_at", "task_id", "task", "owner", "envelope", "body")
#: Why a worker sets aside what it has told nobody of.
UNTOLD = (Reason.REJECTED, Reason.UNDECODABLE)
#: Between the names of those who lost a message.
BETWEEN_HOLDERS = "\n"


class Dead:
    """Moves messages between the living and the dead."""

    def __init__(self, database: Database, positions: Positions) -> None:
        self._database = database
        self._positions = positions
        self._message = database.tables.message
        self._dead = database.tables.dead
        self._forget = DeletesByKey(database, self._message)
        self._skip_locked = Capability.SKIP_LOCKED in database.dialect.capabilities

    def bury(self, tx: Connection, lease: Lease, reason: Reason) -> bool:
        """Set aside what the lease still holds. Whoever buries it records what became of its task, but not of what
        never got that far; that is reported if somebody owns it."""
        row = self._held(tx, lease)
        if row is None:
            return False
        self.move(tx, {lease.message_id: reason}, report=row.owner is not None and reason in UNTOLD)
        return True

    def nack(self, tx: Connection, lease: Lease, *, max_reclaims: int) -> Outcome:
        """Put back what the lease still holds, at the end of its lane, so that others have their turn."""
        row = self._held(tx, lease, self._message.c.started_at.is_(None))
        if row is None:
            return Outcome.LOST
        m = self._message
        if row.reclaims >= max_reclaims:
            self.move(tx, {lease.message_id: Reason.RECLAIMS}, report=True)
            return Outcome.DEAD
        this = m.c.id == lease.message_id
        back = taken_back(self._database)
        self._positions.place(tx, select(m.c.id).where(this), m.c.id, most=1, values=back, surely=this, wait=True)
        self._database.announce(tx, [queue_topic(row.queue)])
        return Outcome.READY

    def move(self, tx: Connection, reasons: Mapping[int, Reason], *, report: bool) -> None:
        """Move these messages, all of them locked, to the dead; `report` has the failure of their tasks recorded.

        A death that nobody reports was no loss: nobody lost the message, and it costs no reclaim.
        """
        for reason in set(reasons.values()):
            ids = [id for id, its in reasons.items() if its is reason]
            tx.execute(insert(self._dead).from_select(*self._as_dead(reason, report)), self._packed(ids))
            self._forget(tx, ids)

    def has_reports(self, tx: Connection) -> bool:
        """Whether the failure of a message is to be recorded now."""
        due = self._dead.c.report_at <= self._database.now()
        return tx.scalar(select(self._dead.c.id).where(due).limit(1)) is not None

    def claim_reports(self, tx: Connection, *, limit: int, lease_for: timedelta) -> list[DeadMessage]:
        d, now = self._dead, self._database.now()
        due = select(d).where(d.c.report_at <= now).order_by(d.c.report_at).limit(limit)
        rows = tx.execute(due.with_for_update(skip_locked=self._skip_locked)).all()
        if rows:
            ask_again = update(d).where(self._given(d.c.id)).values(report_at=now + microseconds(lease_for))
            tx.execute(ask_again, self._packed(row.id for row in rows))
        return sorted(map(as_dead_message, rows), key=lambda message: (message.died_at, message.id))

    def reported(self, tx: Connection, ids: Collection[int]) -> None:
        d = self._dead
        tx.execute(update(d).where(self._given(d.c.id)).values(report_at=None), self._packed(ids))

    def redrive(self, tx: Connection, ids: Collection[int]) -> int:
        d, m = self._dead, self._message
        these_dead = select(d.c.id).where(self._given(d.c.id), may_return(d)).order_by(d.c.id)
        found = these_dead.with_for_update(skip_locked=self._skip_locked)
        mine = self._packed(tx.scalars(found, self._packed(ids)).all())
        back = select(*(d.c[name] for name in KEPT), literal(0)).where(self._given(d.c.id))
        tx.execute(insert(m).from_select([*KEPT, "reclaims"], back), mine)
        tx.execute(delete(d).where(self._given(d.c.id)), mine)
        these = self._given(m.c.id)
        rows = self._positions.place(
            tx,
            select(m.c.id).where(these),
            m.c.id,
            most=len(ids),
            values={},
            tells=[m.c.queue],
            surely=these,
            parameters=mine,
        )
        self._database.announce(tx, {queue_topic(row.queue) for row in rows})
        return len(rows)

    def unpark(self, tx: Connection, tasks: Collection[str], *, limit: int) -> int:
        parked = self._parked(tasks).limit(limit).with_for_update(skip_locked=self._skip_locked)
        ids = tx.scalars(parked).all()
        return self.redrive(tx, ids) if ids else 0

    def has_parked(self, tx: Connection, tasks: Collection[str]) -> bool:
        """Whether a message of one of these tasks is parked."""
        return tx.scalar(self._parked(tasks).limit(1)) is not None

    def _parked(self, tasks: Collection[str]) -> Select[int]:
        d = self._dead.c
        return select(d.id).where(d.reason == Reason.UNKNOWN_TASK.value, d.task.in_(tasks)).order_by(d.id)

    def _held(self, tx: Connection, lease: Lease, *also: ColumnElement[bool]) -> Row[*tuple[Any, ...]] | None:
        m = self._message.c
        held = select(m.queue, m.reclaims, m.owner).where(
            m.id == lease.message_id, m.deliveries == lease.delivery, m.lessee.is_not(None), *also
        )
        return tx.execute(held.with_for_update()).one_or_none()

    def _as_dead(self, reason: Reason, report: bool) -> tuple[list[str], Select[Any]]:
        m, now = self._message.c, self._database.now()
        lost = {
            "reclaims": m.reclaims + 1 if report else m.reclaims,
            "holders": with_holder(self._database) if report else m.holders,
            "report_at": case((m.task_id.is_not(None), now), else_=null()) if report else null(),
        }
        columns = {**{name: m[name] for name in KEPT}, **lost, "died_at": now, "reason": literal(reason.value)}
        return list(columns), select(*columns.values()).where(self._given(m.id))

    def _given(self, id: ColumnElement[int]) -> ColumnElement[bool]:
        return self._database.dialect.given(id, "ids")

    def _packed(self, ids: Any) -> dict[str, Any]:
        return self._database.dialect.packed("ids", 1, [(id,) for id in ids])


def may_return(dead: Table) -> ColumnElement[bool]:
    """Not if its owner has been told that it ended: what became of it now would count for nothing."""
    d = dead.c
    return or_(d.owner.is_(None), d.report_at.is_not(None), d.reason == Reason.UNKNOWN_TASK.value)


def taken_back(database: Database) -> dict[str, Any]:
    """What a message becomes that its holder lost. The holder's name is taken down before the holder is."""
    return {"holders": with_holder(database), "lessee": None, "reclaims": database.tables.message.c.reclaims + 1}


def with_holder(database: Database) -> ColumnElement[str]:
    """The names of those who lost a message, its present holder the last."""
    m, lessee = database.tables.message.c, database.tables.lessee.c
    name = select(lessee.name).where(lessee.id == m.lessee).scalar_subquery()
    return func.coalesce(m.holders + BETWEEN_HOLDERS, "") + name


def as_dead_message(row: Row[Any]) -> DeadMessage:
    return DeadMessage(
        id=row.id,
        delivery=row.deliveries,
        queue=row.queue,
        priority=row.priority,
        body=row.body,
        envelope=row.envelope,
        task_id=row.task_id,
        task=row.task,
        reason=Reason(row.reason),
        reclaims=row.reclaims,
        holders=tuple(row.holders.split(BETWEEN_HOLDERS)) if row.holders else (),
        died_at=row.died_at,
        owner=row.owner,
    )
