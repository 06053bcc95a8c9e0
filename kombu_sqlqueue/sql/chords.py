"""Chords as rows: a counter for each, and a row for each part until the body is on its way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, delete, null, select, update

from ..clock import microseconds
from ..results import Part, Tally
from .database import Database

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
        return self._database.run(lambda tx: self._return_part(tx, part, replace, self._expiry(expires_in)), joins=True)

    def _return_part(self, tx: Connection, part: Part, replace: bool, expiry: ColumnElement[int] | None) -> Tally:
        row = self._lock(tx, part.group_id)
        if row is None:
            tx.execute(self._database.dialect.insert_missing(self._chord, [_new(part.group_id)]))
            row = self._lock(tx, part.group_id)
            assert row is not None
        tally = Tally(row.size, row.extra, row.returned, row.finished_at is not None)
        if tally.finished:
            return tally
        values = {"group_id": part.group_id, "part": part.key, "place": part.place, "meta": part.meta}
        insert = self._database.dialect.insert_missing(self._part, [values]).execution_options(preserve_rowcount=True)
        if tx.execute(insert).rowcount:
            c = self._chord.c
            counted = {"returned": c.returned + 1, "expires_at": expiry}
            tx.execute(update(self._chord).where(c.group_id == part.group_id).values(counted))
            return Tally(tally.size, tally.extra, tally.returned + 1, tally.finished)
        if replace:
            p = self._part.c
            tx.execute(update(self._part).where(p.group_id == part.group_id, p.part == part.key).values(meta=part.meta))
        return tally

    def _lock(self, tx: Connection, group_id: str) -> Any:
        c = self._chord.c
        query = select(c.size, c.extra, c.returned, c.finished_at).where(c.group_id == group_id).with_for_update()
        return tx.execute(query).one_or_none()

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
