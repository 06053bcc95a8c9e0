"""What a holder does with its leases. The fence is in each statement: what it changed is the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Update, delete, func, select, update

from ..messages import Lease
from ..topics import queue_topic
from .by_key import DeletesByKey, by_key, locks_by_key
from .database import Database
from .dialect import Capability
from .direct import Direct
from .positions import Positions

__all__ = ["Leases"]

#: Executes a statement with its parameters; the messages that it changed.
Telling = Callable[[Connection, Mapping[str, Any]], list[Any]]


class Leases:
    """Acks, starts and releases of many leases at once."""

    def __init__(self, database: Database, positions: Positions) -> None:
        self._database = database
        self._positions = positions
        self._message = m = database.tables.message
        unhurried = database.unhurried()
        self._ack, self._begin, self._start = (
            {True: self._telling(write.where(unhurried)), False: self._telling(write)}
            for write in (delete(m).where(self.newest), self._mark(m.c.begun_at), self._mark(m.c.started_at))
        )

    def _mark(self, column: ColumnElement[int]) -> Update:
        m = self._message
        # The first mark stays, if one is written again.
        first = func.coalesce(column, self._database.now())
        return by_key(update(m).where(self.newest, m.c.lessee.is_not(None)).values({column: first}))

    @property
    def newest(self) -> ColumnElement[bool]:
        """Whether a message's latest delivery is among the leases of `parameters`."""
        return self._database.dialect.given_both(self._message.c.id, self._message.c.deliveries, "leases")

    def parameters(self, leases: Iterable[Lease]) -> dict[str, Any]:
        return self._database.dialect.packed("leases", 2, [(lease.message_id, lease.delivery) for lease in leases])

    def ack(self, tx: Connection, leases: Collection[Lease], *, unhurried: bool) -> set[Lease]:
        """Delete their messages, though they may have been taken back, as long as nobody claimed them again."""
        return _still_good(self._ack[unhurried](tx, self.parameters(leases)))

    def begin(self, tx: Connection, leases: Collection[Lease], *, unhurried: bool) -> set[Lease]:
        return _still_good(self._begin[unhurried](tx, self.parameters(leases)))

    def start(self, tx: Connection, leases: Collection[Lease], *, unhurried: bool) -> set[Lease]:
        return _still_good(self._start[unhurried](tx, self.parameters(leases)))

    def release(self, tx: Connection, leases: Collection[Lease], *, though_started: bool = False) -> set[Lease]:
        m = self._message
        which = (self.newest, m.c.lessee.is_not(None), *(() if though_started else (m.c.started_at.is_(None),)))
        held = locks_by_key(select(m.c.id).where(*which), m)
        rows = self._positions.place(
            tx,
            held,
            m.c.id,
            most=len(leases),
            values={"lessee": None, "started_at": None},
            tells=[m.c.deliveries, m.c.queue],
            surely=self.newest,
            parameters=self.parameters(leases),
            ahead=True,
            wait=True,
        )
        self._database.announce(tx, {queue_topic(row.queue) for row in rows})
        return _still_good(rows)

    def held_by(self, tx: Connection, lessee: int) -> set[Lease]:
        """What the lessee holds and has not started."""
        m = self._message.c
        return _still_good(tx.execute(select(m.id, m.deliveries).where(m.lessee == lessee, m.started_at.is_(None))))

    def _telling(self, write: Any) -> Telling:
        """What executes `write` and tells of which messages it was."""
        m, database = self._message, self._database
        if Capability.UPDATE_RETURNING in database.dialect.capabilities:
            return Direct(database, write.returning(m.c.id, m.c.deliveries))
        # Those that are locked by the first are the ones that the second finds.
        locked = select(m.c.id, m.c.deliveries).where(write.whereclause).with_for_update()
        look = Direct(database, locks_by_key(locked, m))
        forget, change = DeletesByKey(database, m), Direct(database, write)

        def tell(tx: Connection, parameters: Mapping[str, Any]) -> list[Any]:
            rows = look(tx, parameters)
            if rows and write.is_delete:
                forget(tx, [row.id for row in rows])
            elif rows:
                change.count(tx, parameters)
            return rows

        return tell


def _still_good(rows: Iterable[Row[Any]]) -> set[Lease]:
    return {Lease(row.id, row.deliveries) for row in rows}
