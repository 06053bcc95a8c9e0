"""The rows that a run begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability, Trouble

from ..engine.records import RunRecord
from ..runs.store import NewRun
from .rows_at_once import RowsAtOnce
from .run_rows import RUN_COLUMNS, row_of_run
from .run_schema import RunTables
from .run_text import Values, checked_name

__all__ = ["NewRuns"]

#: How many ids one query asks for.
IDS = 1000
GIVEN = ("definition", "workflow", "version", "inputs", "labels", "tenant", "priority", "changed_at")


class NewRuns:
    """Inserts runs, each id once."""

    def __init__(self, database: Database, tables: RunTables, values: Values) -> None:
        self._dialect = database.dialect
        self._values = values
        self._run = tables.run.c
        #: Whether a statement that inserts can tell what it has inserted.
        self._tells = Capability.UPDATE_RETURNING in database.dialect.capabilities
        only_new: dict[str, Any] = {"missing": "id", "returning": ("id", "number")} if self._tells else {}
        self._insert = RowsAtOnce(database, tables.run, (*RUN_COLUMNS, *GIVEN), **only_new)
        self._insert_labels = RowsAtOnce(database, tables.label, ("run", "name", "value"))

    def insert(self, tx: Connection, runs: Sequence[NewRun], records: Sequence[RunRecord], now: int) -> dict[int, int]:
        """Insert those whose id is new; the answer is their numbers, by their place among the runs.

        Raises ValueError or TypeError for what cannot be stored.
        """
        rows = [self._row(new, record, now) for new, record in zip(runs, records, strict=True)]
        fresh = {new.id: place for place, new in reversed(list(enumerate(runs)))}
        numbers = self._insert_missing(tx, [rows[place] for place in sorted(fresh.values())])
        labels = [
            {"run": number, "name": name, "value": value}
            for run_id, number in numbers.items()
            for name, value in runs[fresh[run_id]].labels.items()
        ]
        self._insert_labels(tx, labels)
        return {fresh[run_id]: number for run_id, number in numbers.items()}

    def _insert_missing(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Insert those whose id is new; the answer is their numbers."""
        if self._tells:
            return {row.id: row.number for row in self._insert.returned(tx, rows)}
        known = self._known(tx, [row["id"] for row in rows])
        return self._known(tx, self._inserted(tx, [row for row in rows if row["id"] not in known]))

    def _inserted(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Insert the rows; the answer is whose id nobody else has stored at this moment."""
        if not rows or self._is_new(tx, rows):
            return [row["id"] for row in rows]
        return [row["id"] for row in rows if len(rows) > 1 and self._is_new(tx, [row])]

    def _is_new(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Insert all the rows or, if one of them exists, none."""
        try:
            # Otherwise the transaction, which may be the caller's, would be of no use any more.
            with tx.begin_nested():
                self._insert(tx, rows)
        except IntegrityError as error:
            if self._dialect.classify(error) is not Trouble.CONFLICT:
                raise
            return False
        return True

    def _known(self, tx: Connection, ids: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        query = select(self._run.id, self._run.number)
        for start in range(0, len(ids), IDS):
            some = query.where(self._run.id.in_(ids[start : start + IDS]))
            found |= {row.id: row.number for row in tx.execute(some)}
        return found

    def _row(self, new: NewRun, record: RunRecord, now: int) -> dict[str, Any]:
        _check(new)
        return row_of_run(record, self._values) | {
            "definition": new.definition.digest,
            "workflow": new.definition.name,
            "version": new.definition.version,
            "inputs": self._values.dumps(dict(new.inputs)) if new.inputs else None,
            "labels": self._values.dumps(dict(new.labels)) if new.labels else None,
            "tenant": new.tenant,
            "priority": new.priority,
            "changed_at": now,
        }


def _check(new: NewRun) -> None:
    """Raises ValueError for a name that cannot be stored as it is."""
    checked_name("run id", new.id)
    for what, name in ("tenant", new.tenant), ("concurrency key", new.concurrency_key), ("root id", new.root_id):
        if name is not None:
            checked_name(what, name)
    for name, value in new.labels.items():
        checked_name("label", name)
        checked_name(f"value of label {name!r}", value)
