"""The outbox in SQL: the ready messages of a queue of its own, read in order by whoever has the turn."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    and_,
    bindparam,
    literal_column,
    null,
    select,
    union_all,
    update,
)

from ..clock import microseconds
from ..messages import Reason
from ..outbox_store import OUTBOX, Outgoing
from ..topics import RELAY
from .by_key import DeletesByKey
from .database import Database
from .dead import Dead
from .direct import Direct
from .lessees import lease_ends_at
from .positions import Positions

__all__ = ["SQLOutbox"]

#: The row of the counters that names the lessee whose turn it is.
TURN = "relay"
NOBODY = 0


class SQLOutbox:
    """Implements `kombu_sqlqueue.outbox_store.OutboxStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._message = database.tables.message
        self._turn = database.tables.counter
        self._lessee = database.tables.lessee
        self._dead = Dead(database, Positions(database))
        self._forget = DeletesByKey(database, self._message, unhurried=True)
        self._reads: dict[int, Direct] = {}

    # -- whose turn it is -----------------------------------------------------------------

    def take_turn(self, lessee: int) -> bool:
        # Those who wait only look: where there is one writer they would be in its way.
        holder = self._database.statement(self._alive_holder)
        if holder is not None:
            return holder == lessee
        return self._database.run(lambda tx: self._take(tx, lessee))

    def leave_turn(self, lessee: int) -> None:
        self._database.run(lambda tx: self._leave(tx, lessee))

    def _take(self, tx: Connection, lessee: int) -> bool:
        # First the lock, then another statement: it must see who took the turn while this one waited.
        t = self._turn
        tx.execute(self._database.dialect.insert_missing(t, [{"name": TURN, "value": NOBODY}]))
        tx.execute(select(t.c.value).where(t.c.name == TURN).with_for_update())
        holder = self._alive_holder(tx)
        if holder is not None:
            return holder == lessee
        mine = update(t).where(t.c.name == TURN, self._is_alive(lessee)).values(value=lessee)
        return tx.execute(mine).rowcount == 1

    def _leave(self, tx: Connection, lessee: int) -> None:
        t = self._turn
        mine = update(t).where(t.c.name == TURN, t.c.value == lessee).values(value=NOBODY)
        if tx.execute(mine).rowcount:
            self._database.announce(tx, [RELAY])

    def _alive_holder(self, tx: Connection) -> int | None:
        return tx.scalar(select(self._turn.c.value).join_from(self._turn, self._lessee, self._has_turn()))

    def _has_turn(self, spare: ColumnElement[int] | int = 0) -> ColumnElement[bool]:
        t, l = self._turn.c, self._lessee.c
        lives = and_(l.lost_at.is_(None), lease_ends_at(self._database) > self._database.now() + spare)
        return and_(t.name == TURN, t.value == l.id, lives)

    def _is_alive(self, lessee: int) -> ColumnElement[bool]:
        l = self._lessee.c
        return select(l.id).where(l.id == lessee, l.lost_at.is_(None)).exists()

    # -- messages -------------------------------------------------------------------------

    def read(self, lessee: int, *, limit: int, spare: timedelta) -> list[Outgoing] | None:
        if limit not in self._reads:
            self._reads[limit] = Direct(self._database, self._build(limit))
        parameters = {"reader": lessee, "spare": microseconds(spare)}
        rows = self._database.statement(lambda tx: self._reads[limit](tx, parameters))
        if not rows:
            return None
        messages = sorted((row for row in rows if row.id), key=lambda row: (row.position, row.id))
        return [Outgoing(row.id, row.envelope, row.body, row.task_id, row.task) for row in messages]

    def _build(self, limit: int) -> Executable:
        m, t = self._message.c, self._turn.c
        spare = bindparam("spare", type_=BigInteger)
        mine = (
            select(t.value)
            .select_from(self._turn.join(self._lessee, self._has_turn(spare)))
            .where(t.value == bindparam("reader", type_=BigInteger))
            .exists()
        )
        columns = (m.id, m.position, m.envelope, m.body, m.task_id, m.task)
        # From the head each time, not from where the last one ended: what is committed late may belong before that.
        # The limit is written into the text: with a parameter the planner reckons with a tenth of the table.
        first = (
            select(*columns)
            .where(m.queue == OUTBOX, m.priority == 0, m.position.is_not(None), mine)
            .order_by(m.position, m.id)
            .limit(literal_column(str(limit), Integer))
            .subquery()
        )
        # One row more says whose turn it is: else nothing to read would look like no right to read.
        nothing = (null().label(column.name) for column in columns[1:])
        return union_all(select(literal_column("0", BigInteger).label("id"), *nothing).where(mine), select(first))

    def forget(self, ids: Collection[int]) -> int:
        if not ids:
            return 0
        run = self._database.statement if self._forget.at_once else self._database.run
        return run(lambda tx: self._forget(tx, ids))

    def bury(self, id: int, reason: Reason) -> bool:
        return self._database.run(lambda tx: self._bury(tx, id, reason))

    def _bury(self, tx: Connection, id: int, reason: Reason) -> bool:
        m = self._message.c
        waits = select(m.id).where(m.id == id, m.queue == OUTBOX, m.position.is_not(None))
        if tx.scalar(waits.with_for_update()) is None:
            return False
        self._dead.move(tx, {id: reason}, report=False)
        return True
