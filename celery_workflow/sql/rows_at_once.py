"""Many rows written by one statement, that is built once for each number of rows and executed by the driver itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Table, bindparam, insert

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct

__all__ = ["RowsAtOnce"]

#: Numbers of rows for which there are statements; the largest with all columns fits into what SQLite takes.
SIZES = (500, 64, 16, 8, 4, 3, 2, 1)


class RowsAtOnce:
    """Inserts rows of a table, all with the same columns; with `update`, overwrites those columns where the key exists."""

    def __init__(self, database: Database, table: Table, columns: Sequence[str], *, update: Sequence[str] = ()) -> None:
        self._database = database
        self._table = table
        self._columns = tuple(columns)
        self._update = list(update)
        self._statements: dict[int, Direct] = {}

    def __call__(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        for chunk in _chunks(rows):
            statement = self._statements.get(len(chunk)) or self._build(len(chunk))
            given = {f"{name}_{place}": row[name] for place, row in enumerate(chunk) for name in self._columns}
            statement.count(tx, given)

    def _build(self, size: int) -> Direct:
        types = self._table.c
        values = [
            {name: bindparam(f"{name}_{place}", type_=types[name].type) for name in self._columns} for place in range(size)
        ]
        statement: Executable = (
            self._database.dialect.upsert(self._table, values, update=self._update)
            if self._update
            else insert(self._table).values(values)
        )
        self._statements[size] = Direct(self._database, statement)
        return self._statements[size]


def _chunks(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    start = 0
    for size in SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size
