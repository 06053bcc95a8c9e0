"""Many rows written by one statement, that is built once for each number of rows and executed by the driver itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Table, bindparam, insert

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct

from .written_together import Part

__all__ = ["RowsAtOnce"]

#: Numbers of rows for which there are statements; the largest with all columns fits into what SQLite takes.
SIZES = (500, 64, 16, 8, 4, 3, 2, 1)


class RowsAtOnce:
    """Inserts rows of a table, all with the same columns.

    With `update`, overwrites those columns where the primary key exists, those in `keep` unless the new value is NULL.
    With `missing`, inserts only rows in which that unique column is new, and tells the columns `returning` of them.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        columns: Sequence[str],
        *,
        update: Sequence[str] = (),
        keep: Sequence[str] = (),
        missing: str | None = None,
        returning: Sequence[str] = (),
    ) -> None:
        self._database = database
        self._table = table
        self._columns = tuple(columns)
        self._update = list(update)
        self._keep = list(keep)
        self._missing = missing
        self._returning = [table.c[name] for name in returning]
        self._statements: dict[int, tuple[Executable, Direct]] = {}

    def __call__(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        for part in self.parts(rows):
            part.alone.count(tx, part.values)

    def returned(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """As a call; the answer has the columns `returning` of what was inserted."""
        return [row for part in self.parts(rows) for row in part.alone(tx, part.values)]

    def parts(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
        """The statements that a call executes."""
        for chunk in _chunks(rows):
            mark = self._mark(len(chunk))
            statement, alone = self._statements.get(len(chunk)) or self._build(len(chunk))
            values = {f"{mark}_{name}_{place}": row[name] for place, row in enumerate(chunk) for name in self._columns}
            yield Part(self._table.name, mark, statement, alone, values)

    def _mark(self, size: int) -> str:
        """What tells a statement and its parameters from those that it is executed together with."""
        return f"{self._table.name}_{size}"

    def _build(self, size: int) -> tuple[Executable, Direct]:
        types, mark = self._table.c, self._mark(size)
        values = [
            {name: bindparam(f"{mark}_{name}_{place}", type_=types[name].type) for name in self._columns}
            for place in range(size)
        ]
        statement = self._statement(values)
        self._statements[size] = statement, Direct(self._database, statement)
        return self._statements[size]

    def _statement(self, values: Sequence[Mapping[str, Any]]) -> Executable:
        dialect, table = self._database.dialect, self._table
        if self._missing is not None:
            fresh = dialect.insert_missing(table, values, key=[table.c[self._missing]])
            statement: Executable = fresh.returning(*self._returning)
            return statement
        if not self._update:
            return insert(table).values(list(values))
        return dialect.upsert(table, values, update=self._update, keep=self._keep)


def _chunks(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    start = 0
    for size in SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size
