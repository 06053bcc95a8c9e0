"""A claim as one statement that commits itself, for databases with LATERAL joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    Select,
    SmallInteger,
    Text,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
    true,
    union_all,
    update,
)

from .database import Database
from .direct import Direct
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
        self._unhurried = unhurried
        self._statements: dict[tuple[int, int], Direct] = {}

    def take(
        self, work: Work, queues: Sequence[str], *, share: int, room: int, lessee: int, start: Mapping[Lane, int]
    ) -> Sequence[Any]:
        """Lease up to `room` messages, up to `share` of each queue, the first queues first."""
        parameters = {
            **self._dialect.packed("asked", 1, [(queue,) for queue in queues]),
            **self._dialect.packed("floors", 3, [(lane.queue, _rank(*lane[1:]), floor) for lane, floor in start.items()]),
            "taker": lessee,
        }
        statement = self._statement(share, room)
        return work.statement(lambda tx: statement(tx, parameters))

    def _statement(self, share: int, room: int) -> Direct:
        if (share, room) not in self._statements:
            self._statements[share, room] = Direct(self._database, self._build(share, room))
        return self._statements[share, room]

    def _build(self, share: int, room: int) -> Executable:
        # The numbers are written into the text: with a parameter as its LIMIT the planner reckons with a
        # tenth of the table.
        m = self._tables.message
        taken = self._taken(literal_column(str(share), Integer), literal_column(str(room), Integer))
        return (
            update(m)
            .where(m.c.id == taken.c.id, self._dialect.found(m.c.id, select(taken.c.id)))
            .values(
                position=None,
                lessee=bindparam("taker", type_=BigInteger),
                begun_at=None,
                deliveries=m.c.deliveries + 1,
            )
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

    def _taken(self, share: ColumnElement[int], room: ColumnElement[int]) -> CTE:
        """The messages to claim, locked, with their positions. A CTE, so that it is done only once."""
        lessee = self._tables.lessee.c
        asked = self._dialect.rows("asked", queue=Text)
        alive = select(1).where(lessee.id == bindparam("taker", type_=BigInteger), lessee.lost_at.is_(None)).exists()
        of_queue = self._of_queue(asked, share).lateral("of_queue")
        taken = select(of_queue.c.id, of_queue.c.position).select_from(asked).join(of_queue, true()).where(alive)
        if self._unhurried:
            taken = taken.where(self._database.unhurried())
        return taken.limit(room).cte("taken")

    def _of_queue(self, asked: FromClause, share: ColumnElement[int]) -> Select[Any]:
        lanes = self._lanes(asked)
        m = self._tables.message.c
        of_lane = (
            select(m.id, m.position)
            .correlate(asked, lanes)
            .where(m.queue == asked.c.queue, m.priority == lanes.c.priority, m.position >= lanes.c.begin)
            .where(m.position < lanes.c.end)
            .order_by(m.position)
            .limit(share)
            .with_for_update(skip_locked=True)
            .lateral("of_lane")
        )
        return select(of_lane.c.id, of_lane.c.position).select_from(lanes).join(of_lane, true()).limit(share)

    def _lanes(self, asked: FromClause) -> FromClause:
        """The lanes of one queue in the order of their claims, with the positions between which to look."""
        lane = self._tables.lane.c
        seen = select(lane.priority).where(lane.queue == asked.c.queue, lane.priority != 0).correlate(asked)
        priorities = union_all(select(literal_column("0", SmallInteger).label("priority")), seen).lateral("priorities")
        priority = priorities.c.priority
        # Twice each lane: what came back, then what never left.
        ranges = func.unnest(literal_column("ARRAY[true, false]")).table_valued("ahead").render_derived(name="ranges")
        ahead = ranges.c.ahead
        floors = self._dialect.rows("floors", queue=Text, rank=Integer, floor=BigInteger)
        floor = (
            select(floors.c.floor)
            .where(floors.c.queue == asked.c.queue, floors.c.rank == _rank(priority, ahead))
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


def _rank(priority: Any, ahead: Any) -> Any:
    """A lane of a queue as one number."""
    return priority * 2 + (cast(ahead, Integer) if isinstance(ahead, ColumnElement) else ahead)
