"""Places in line. They only ever grow, so that who claims may begin where it last found something."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, FromClause, Select, bindparam, func, literal, select

from .database import Database
from .dialect import Capability

__all__ = ["AHEAD", "Positions"]

#: Added to the position of a message that was claimed before and came back: below zero, so before
#: all that never left, and in line among its kind.
AHEAD = -(2**62)


class Positions:
    """Draws positions: from a sequence, or where there is none from a row that the writer locks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sequence = database.tables.positions if Capability.SEQUENCES in database.dialect.capabilities else None
        self._skip_locked = Capability.SKIP_LOCKED in database.dialect.capabilities

    def drawn(self) -> ColumnElement[int]:
        """The next position, in an INSERT whose rows carry what `parameters` made."""
        if self._sequence is not None:
            return self._sequence.next_value()
        return bindparam("drawn_position", type_=BigInteger)

    def parameters(self, tx: Connection, count: int) -> list[dict[str, Any]]:
        """For each of `count` rows the parameter of `drawn`, if it has one."""
        if self._sequence is not None:
            return [{} for _ in range(count)]
        first = self._reserve(tx, count)
        return [{"drawn_position": first + place} for place in range(count)]

    def placed(
        self,
        tx: Connection,
        ids: Select[Any],
        *order: ColumnElement[Any],
        most: int,
        ahead: bool = False,
        wait: bool = False,
    ) -> FromClause:
        """A table (id, position) that locks the first `most` of `ids` and places them in this order.

        Rows that someone else has locked are left out, unless told to `wait` for them.
        """
        first = ids.order_by(*order).limit(most)
        shift = AHEAD if ahead else 0
        if self._sequence is None:
            numbered = first.add_columns(func.row_number().over(order_by=order).label("place")).subquery("numbered")
            base = self._reserve(tx, most) - 1 + shift
            return select(numbered.c.id, (numbered.c.place + literal(base, BigInteger)).label("position")).subquery("placed")
        locked = first.with_for_update(skip_locked=self._skip_locked and not wait).cte("locked")
        # Drawn here and not in the UPDATE, which does not say in which order it goes.
        drawn = self._sequence.next_value() + literal(shift, BigInteger)
        return select(locked.c.id, drawn.label("position")).cte("placed")

    def _reserve(self, tx: Connection, count: int) -> int:
        """The first of `count` positions that are nobody else's."""
        counter = self._database.tables.counter
        upsert = self._database.dialect.upsert(
            counter, {"name": "position", "value": count}, update={"value": counter.c.value + count}
        )
        tx.execute(upsert)
        last = tx.scalar(select(counter.c.value).where(counter.c.name == "position"))
        assert last is not None
        return int(last) - count + 1
