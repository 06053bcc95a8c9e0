"""What a holder does with its leases. The fence is in each statement: what it changed is the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, Row, and_, delete, func, select, tuple_, update

from ..messages import Lease
from ..topics import queue_topic
from .database import Database
from .direct import Direct
from .positions import Positions

__all__ = ["Leases"]


class Leases:
    """Acks, starts and releases of many leases at once."""

    def __init__(self, database: Database, positions: Positions) -> None:
        self._database = database
        self._positions = positions
        self._message = m = database.tables.message
        self._leases = database.dialect.rows("leases", id=BigInteger, delivery=Integer)
        unhurried = database.dialect.unhurried()
        forget = delete(m).where(self.newest).returning(m.c.id, m.c.deliveries)
        mark = (
            update(m)
            .where(self.newest, m.c.lessee.is_not(None))
            # The first mark stays, if one is written again.
            .values(started_at=func.coalesce(m.c.started_at, database.now()))
            .returning(m.c.id, m.c.deliveries)
        )
        self._ack = {True: Direct(database, forget.where(unhurried)), False: Direct(database, forget)}
        self._start = {True: Direct(database, mark.where(unhurried)), False: Direct(database, mark)}

    @property
    def newest(self) -> ColumnElement[bool]:
        """Whether a message's latest delivery is among the leases of `parameters`."""
        m = self._message.c
        exactly = tuple_(m.id, m.deliveries).in_(select(self._leases.c.id, self._leases.c.delivery))
        return and_(self._database.dialect.given(m.id, "leases"), exactly)

    def parameters(self, leases: Iterable[Lease]) -> dict[str, Any]:
        return self._database.dialect.packed("leases", 2, [(lease.message_id, lease.delivery) for lease in leases])

    def ack(self, tx: Connection, leases: Collection[Lease], *, unhurried: bool) -> set[Lease]:
        """Delete their messages, though they may have been taken back, as long as nobody claimed them again."""
        return _still_good(self._ack[unhurried](tx, self.parameters(leases)))

    def start(self, tx: Connection, leases: Collection[Lease], *, unhurried: bool) -> set[Lease]:
        return _still_good(self._start[unhurried](tx, self.parameters(leases)))

    def release(self, tx: Connection, leases: Collection[Lease]) -> set[Lease]:
        m = self._message
        held = select(m.c.id).where(self.newest, m.c.lessee.is_not(None), m.c.started_at.is_(None))
        placed = self._positions.placed(tx, held, m.c.id, most=len(leases), ahead=True, wait=True)
        back = (
            update(m)
            .where(m.c.id == placed.c.id, self._database.dialect.given(m.c.id, "leases"))
            .values(position=placed.c.position, lessee=None)
            .returning(m.c.id, m.c.deliveries, m.c.queue)
        )
        rows = tx.execute(back, self.parameters(leases)).all()
        self._database.announce(tx, {queue_topic(row.queue) for row in rows})
        return _still_good(rows)

    def held_by(self, tx: Connection, lessee: int) -> set[Lease]:
        """What the lessee holds and has not started."""
        m = self._message.c
        return _still_good(tx.execute(select(m.id, m.deliveries).where(m.lessee == lessee, m.started_at.is_(None))))


def _still_good(rows: Iterable[Row[Any]]) -> set[Lease]:
    return {Lease(row.id, row.deliveries) for row in rows}
