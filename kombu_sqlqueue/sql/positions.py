"""Places in line. They only ever grow, so that who claims may begin where it last found something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Row,
    Select,
    String,
    Update,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    update,
)

from .by_key import by_key
from .database import NO_PARAMETERS, Database
from .dialect import Capability
from .direct import Direct

__all__ = ["AHEAD", "Positions"]

#: Added to the position of a message that was claimed before and came back: below zero, so before
#: all that never left, and in line among its kind.
AHEAD = -(2**62)


class Positions:
    """Draws positions: as the dialect says, or where it has no way from a row that the writer locks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._message = database.tables.message
        self._next = database.dialect.next_position(database.tables)
        self._skip_locked = Capability.SKIP_LOCKED in database.dialect.capabilities
        self._returning = Capability.UPDATE_RETURNING in database.dialect.capabilities

    def drawn(self) -> ColumnElement[int]:
        """The next position, in an INSERT whose rows carry what `parameters` made."""
        return bindparam("drawn_position", type_=BigInteger) if self._next is None else self._next

    def parameters(self, tx: Connection, count: int) -> list[dict[str, Any]]:
        """For each of `count` rows the parameter of `drawn`, if it has one."""
        if self._next is not None:
            return [{} for _ in range(count)]
        first = self._reserve(tx, count)
        return [{"drawn_position": first + place} for place in range(count)]

    def place(
        self,
        tx: Connection,
        ids: Select[Any],
        *order: ColumnElement[Any],
        most: int,
        values: Mapping[str, Any],
        tells: Sequence[ColumnElement[Any]] = (),
        surely: ColumnElement[bool] | None = None,
        parameters: Mapping[str, Any] = NO_PARAMETERS,
        ahead: bool = False,
        wait: bool = False,
    ) -> Sequence[Row[Any]]:
        """Lock the first `most` of these messages, place them in this order, and set `values`.

        Messages that someone else has locked are left out, unless told to `wait` for them. The answer
        has the id and the columns it `tells` of each, which stay as they are. A condition that
        `surely` holds for all of them leads the planner to them.
        """
        m = self._message
        first = ids.order_by(*order).limit(most)
        skip_locked = self._skip_locked and not wait
        if not self._returning:
            rows = tx.execute(first.add_columns(*tells).with_for_update(skip_locked=skip_locked), parameters).all()
            self._place_locked(tx, [row.id for row in rows], values, ahead)
            return rows
        if self._next is None:
            placed = self._counted(tx, first, order, most, ahead)
        else:
            placed = self._drawn(first, self._next, skip_locked, ahead)
        return tx.execute(self._write(placed, values, surely).returning(m.c.id, *tells), parameters).all()

    def placing(self, ids: Select[Any], *order: ColumnElement[Any], most: int, values: Mapping[str, Any]) -> Update | None:
        """What `place` does for ready messages, as one statement; None where it takes more."""
        if not self._returning or self._next is None:
            return None
        # Written into the text: with a parameter as its LIMIT the planner reckons with a tenth of the table.
        first = ids.order_by(*order).limit(literal_column(str(most), Integer))
        return self._write(self._drawn(first, self._next, self._skip_locked, ahead=False), values)

    def _write(self, placed: FromClause, values: Mapping[str, Any], surely: ColumnElement[bool] | None = None) -> Update:
        m = self._message
        if surely is None:
            surely = self._database.dialect.found(m.c.id, select(placed.c.id))
        return update(m).where(m.c.id == placed.c.id, surely).values({**values, "position": placed.c.position})

    def _counted(
        self, tx: Connection, first: Select[Any], order: Sequence[ColumnElement[Any]], most: int, ahead: bool
    ) -> FromClause:
        """A table (id, position) of the messages, with positions reserved for them."""
        numbered = first.add_columns(func.row_number().over(order_by=order).label("place")).subquery("numbered")
        base = self._reserve(tx, most) - 1 + (AHEAD if ahead else 0)
        return select(numbered.c.id, (numbered.c.place + literal(base, BigInteger)).label("position")).subquery("placed")

    def _drawn(self, first: Select[Any], position: ColumnElement[int], skip_locked: bool, ahead: bool) -> FromClause:
        """A table (id, position) of the messages, locked."""
        locked = first.with_for_update(skip_locked=skip_locked).cte("locked")
        # Drawn here and not in the UPDATE, which does not say in which order it goes.
        drawn = position + literal(AHEAD if ahead else 0, BigInteger)
        return select(locked.c.id, drawn.label("position")).cte("placed")

    def _place_locked(self, tx: Connection, ids: Sequence[int], values: Mapping[str, Any], ahead: bool) -> None:
        """Place messages that are locked already."""
        m = self._message
        if not ids or self._next is None:
            return
        place = func.find_in_set(m.c.id, literal(",".join(map(str, ids)), String), type_=BigInteger)
        position = self._next + literal(AHEAD if ahead else 0, BigInteger) + place
        # In this order: MySQL computes each value with those that come before it set already.
        in_order = [*((m.c[name], value) for name, value in values.items()), (m.c.position, position)]
        tx.execute(by_key(update(m).where(m.c.id.in_(ids))).ordered_values(*in_order))

    def _reserve(self, tx: Connection, count: int) -> int:
        """The first of `count` positions that are nobody else's."""
        ((last,),) = self._advance(tx, {"count": count})
        return int(last) - count + 1

    @cached_property
    def _advance(self) -> Direct:
        counter = self._database.tables.counter
        count = bindparam("count", type_=BigInteger)
        further: Any = self._database.dialect.upsert(
            counter, {"name": "position", "value": count}, update={"value": counter.c.value + count}
        )
        return Direct(self._database, further.returning(counter.c.value))
