"""Chords as rows: a counter for each, and a row for each part until the body is on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    Row,
    Update,
    bindparam,
    case,
    delete,
    null,
    select,
    update,
)

from ..clock import microseconds
from ..results import Part, Tally
from .database import Database
from .dialect import Capability

__all__ = ["SQLChordStore"]

#: For how long a finished chord is remembered, so that parts which return late are known as late.
REMEMBERED_FOR = timedelta(days=1)


class SQLChordStore:
    """The `ChordStore` of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._chord = database.tables.chord
        self._part = database.tables.chord_part

    def open(self, group_id: str, *, header: bytes | None, expires_in: timedelta | None) -> None:
        values = {**_new(group_id), "header": header, "expires_at": self._expiry(expires_in)}
        update = [name for name in values if name != "group_id"]
        opened = self._database.dialect.upsert(
            self._chord, values, update=update, where=self._chord.c.finished_at.is_not(None)
        )
        self._database.run(lambda tx: tx.execute(opened), joins=True)

    def set_size(self, group_id: str, size: int, *, expires_in: timedelta | None) -> None:
        c, expiry = self._chord.c, self._expiry(expires_in)
        anew = {
            "size": size,
            "extra": case((c.finished_at.is_not(None), 0), else_=c.extra),
            "returned": case((c.finished_at.is_not(None), 0), else_=c.returned),
            "finished_at": null(),
            "expires_at": expiry,
        }
        values = {**_new(group_id), "size": size, "expires_at": expiry}
        sized = self._database.dialect.upsert(self._chord, values, update=anew)
        self._database.run(lambda tx: tx.execute(sized), joins=True)

    def add(self, group_id: str, count: int = 1) -> None:
        values = {**_new(group_id), "extra": count}
        added = self._database.dialect.upsert(self._chord, values, update={"extra": self._chord.c.extra + count})
        # Not repeated after a commit of unknown outcome: a chord that waits for too many waits for ever.
        self._database.run(lambda tx: tx.execute(added), repeatable=False, joins=True)

    def return_part(self, part: Part, *, replace: bool, expires_in: timedelta | None) -> Tally:
        return self._database.run(lambda tx: self._return_part(tx, part, replace, expires_in), joins=True)

    def _return_part(self, tx: Connection, part: Part, replace: bool, expires_in: timedelta | None) -> Tally:
        this = {"of_group": part.group_id, "of_part": part.key}
        new = self._insert(tx, {**this, "new_place": part.place, "new_meta": part.meta})
        kept_for = None if expires_in is None else microseconds(expires_in)
        tally = self._count(tx, {"of_group": part.group_id, "new": int(new), "kept_for": kept_for})
        if tally.finished:
            tx.execute(self._drop, this)
        elif replace and not new:
            tx.execute(self._replace, {**this, "new_meta": part.meta})
        return tally

    def _count(self, tx: Connection, values: dict[str, object]) -> Tally:
        """Add to the number of parts. From here to the end of the transaction the chord is ours."""
        row = self._counted(tx, values)
        if row is None:
            tx.execute(self._database.dialect.insert_missing(self._chord, [_new(str(values["of_group"]))]))
            row = self._counted(tx, values)
        assert row is not None
        return Tally(row.size, row.extra, row.returned, row.finished_at is not None)

    def _counted(self, tx: Connection, values: dict[str, object]) -> Row[Any] | None:
        if Capability.UPDATE_RETURNING in self._database.dialect.capabilities:
            return tx.execute(self._add.returning(*self._tally), values).one_or_none()
        tx.execute(self._add, values)
        return tx.execute(self._look, {"of_group": values["of_group"]}).one_or_none()

    # Built once: a wide header returns thousands of parts.

    @cached_property
    def _insert(self) -> Callable[[Connection, Mapping[str, Any]], bool]:
        p = self._part.c
        values = {
            "group_id": bindparam("of_group", type_=p.group_id.type),
            "part": bindparam("of_part", type_=p.part.type),
            "place": bindparam("new_place", type_=p.place.type),
            "meta": bindparam("new_meta", type_=p.meta.type),
        }
        return self._database.dialect.inserting(self._part, values)

    @cached_property
    def _add(self) -> Update:
        c = self._chord.c
        expiry = self._database.now() + bindparam("kept_for", type_=BigInteger)
        values = {
            "returned": c.returned + bindparam("new", type_=Integer),
            "expires_at": case((c.finished_at.is_(None), expiry), else_=c.expires_at),
        }
        return update(self._chord).where(c.group_id == bindparam("of_group")).values(values)

    @cached_property
    def _tally(self) -> tuple[ColumnElement[Any], ...]:
        c = self._chord.c
        return c.size, c.extra, c.returned, c.finished_at

    @cached_property
    def _look(self) -> Executable:
        return select(*self._tally).where(self._chord.c.group_id == bindparam("of_group"))

    @cached_property
    def _drop(self) -> Executable:
        return delete(self._part).where(*self._this_part)

    @cached_property
    def _replace(self) -> Executable:
        return update(self._part).where(*self._this_part).values(meta=bindparam("new_meta"))

    @property
    def _this_part(self) -> tuple[ColumnElement[bool], ...]:
        return self._part.c.group_id == bindparam("of_group"), self._part.c.part == bindparam("of_part")

    def parts(self, group_id: str) -> list[Part]:
        p = self._part.c
        query = select(p.group_id, p.part, p.place, p.meta).where(p.group_id == group_id)
        in_order = query.order_by(p.place.is_(None), p.place, p.part)
        rows = self._database.run(lambda tx: tx.execute(in_order).all(), joins=True)
        return [Part(row.group_id, row.part.rpartition(":")[0], row.place, row.meta) for row in rows]

    def header(self, group_id: str) -> bytes | None:
        query = select(self._chord.c.header).where(self._chord.c.group_id == group_id)
        return self._database.run(lambda tx: tx.scalar(query), joins=True)

    def finish(self, group_id: str) -> bool:
        return self._database.run(lambda tx: self._finish(tx, group_id), joins=True)

    def _finish(self, tx: Connection, group_id: str) -> bool:
        c = self._chord.c
        values = {"finished_at": self._database.now(), "header": null(), "expires_at": self._expiry(REMEMBERED_FOR)}
        finished = tx.execute(update(self._chord).where(c.group_id == group_id, c.finished_at.is_(None)).values(values))
        tx.execute(delete(self._part).where(self._part.c.group_id == group_id))
        return finished.rowcount > 0

    def _expiry(self, expires_in: timedelta | None) -> ColumnElement[int] | None:
        return None if expires_in is None else self._database.now() + microseconds(expires_in)


def _new(group_id: str) -> dict[str, object]:
    return {"group_id": group_id, "size": None, "extra": 0, "returned": 0, "finished_at": None}
