"""A claim as one statement that commits itself, for databases with LATERAL joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    Row,
    Select,
    SmallInteger,
    Text,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    select,
    true,
    union_all,
    update,
)

from .database import Database
from .floors import Lane
from .work import Work

__all__ = ["LateralClaim"]

#: Above every position.
END = 2**63 - 1


class LateralClaim:
    """Takes ready messages in one round trip, beginning in each lane where it is told to."""

    def __init__(self, database: Database, *, unhurried: bool) -> None:
        self._database = database
        self._dialect = database.dialect
        self._tables = database.tables
        self._statement = self._build(unhurried)

    def take(
        self, work: Work, queues: Sequence[str], *, share: int, room: int, lessee: int, start: Mapping[Lane, int]
    ) -> Sequence[Row[Any]]:
        """Lease up to `room` messages, up to `share` of each queue, the first queues first."""
        parameters = {
            **self._dialect.packed("asked", 2, [(queue, turn) for turn, queue in enumerate(queues)]),
            **self._dialect.packed("floors", 4, [(*lane, floor) for lane, floor in start.items()]),
            "share": share,
            "room": room,
            "taker": lessee,
        }
        return work.statement(lambda tx: tx.execute(self._statement, parameters).all())

    def _build(self, unhurried: bool) -> Any:
        m = self._tables.message
        taken = self._taken(unhurried)
        return (
            update(m)
            .where(m.c.id == taken.c.id, self._dialect.found(m.c.id, select(taken.c.id)))
            .values(position=None, lessee=bindparam("taker", type_=BigInteger), deliveries=m.c.deliveries + 1)
            .returning(
                m.c.id,
                m.c.deliveries,
                m.c.queue,
                m.c.priority,
                taken.c.position,
                func.coalesce(m.c.expires_at <= self._database.now(), False).label("expired"),
                m.c.reclaims,
                m.c.envelope,
                m.c.body,
            )
        )

    def _taken(self, unhurried: bool) -> CTE:
        """The messages to claim, locked, with their positions. A CTE, so that it is done only once."""
        lessee = self._tables.lessee.c
        asked = self._dialect.rows("asked", queue=Text, turn=Integer)
        alive = select(1).where(lessee.id == bindparam("taker", type_=BigInteger), lessee.lost_at.is_(None)).exists()
        of_queue = self._of_queue(asked).lateral("of_queue")
        taken = select(of_queue.c.id, of_queue.c.position).select_from(asked).join(of_queue, true()).where(alive)
        if unhurried:
            taken = taken.where(self._dialect.unhurried())
        return taken.limit(_number("room")).cte("taken")

    def _of_queue(self, asked: FromClause) -> Select[Any]:
        lanes = self._lanes(asked)
        m = self._tables.message.c
        of_lane = (
            select(m.id, m.position)
            .correlate(asked, lanes)
            .where(m.queue == asked.c.queue, m.priority == lanes.c.priority, m.position >= lanes.c.begin)
            .where(m.position < lanes.c.end)
            .order_by(m.position)
            .limit(_number("share"))
            .with_for_update(skip_locked=True)
            .lateral("of_lane")
        )
        return select(of_lane.c.id, of_lane.c.position).select_from(lanes).join(of_lane, true()).limit(_number("share"))

    def _lanes(self, asked: FromClause) -> FromClause:
        """The lanes of one queue in the order of their claims, with the positions between which to look."""
        lane = self._tables.lane.c
        seen = select(lane.priority).where(lane.queue == asked.c.queue, lane.priority != 0).correlate(asked)
        priorities = union_all(select(literal_column("0", SmallInteger).label("priority")), seen).lateral("priorities")
        priority = priorities.c.priority
        # Twice each lane: what came back, then what never left.
        ranges = func.unnest(literal_column("ARRAY[true, false]")).table_valued("ahead").render_derived(name="ranges")
        ahead = ranges.c.ahead
        floors = self._dialect.rows("floors", queue=Text, priority=SmallInteger, ahead=Boolean, floor=BigInteger)
        floor = (
            select(floors.c.floor)
            .where(floors.c.queue == asked.c.queue, floors.c.priority == priority, floors.c.ahead == ahead)
            .correlate(asked, priorities, ranges)
            .scalar_subquery()
        )
        begin = case(
            (ahead, func.coalesce(floor, literal(-END, BigInteger))), else_=func.greatest(floor, literal(0, BigInteger))
        )
        end = case((ahead, literal(0, BigInteger)), else_=literal(END, BigInteger))
        return (
            select(priority, begin.label("begin"), end.label("end"))
            .select_from(priorities.join(ranges, true()))
            .correlate(asked)
            .order_by(priority.desc(), ahead.desc())
            .lateral("lanes")
        )


def _number(name: str) -> ColumnElement[int]:
    """A number written into the text: with a parameter as its LIMIT the planner guesses a tenth of the table."""
    return bindparam(name, type_=Integer, literal_execute=True)
