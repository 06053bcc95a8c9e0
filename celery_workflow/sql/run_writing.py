"""Writing what was decided about runs, with as few statements as may be."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, delete, update

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct

from ..engine.decision import Decision
from ..engine.journal import Entry
from ..engine.records import Key, RunRecord, SignalRecord, StepRecord
from ..engine.values import RUN
from .rows_at_once import RowsAtOnce
from .run_rows import RUN_STATE, STEP_COLUMNS, row_of_entry, row_of_run, row_of_signal, row_of_step
from .run_schema import RunTables
from .run_text import Values

__all__ = ["RunWrites", "Unsaved"]

SIGNAL = ("run", "id", "name", "payload", "place", "received_at", "taken_by")
ENTRY = ("run", "at", "state", "why", "epoch", "name", "idx", "attempt", "items", "error")
#: Why an entry about an item is there that is kept without an error: it stands for a chunk of items.
CHUNK = "items"


class RunWrites:
    """The statements that write runs."""

    def __init__(self, database: Database, tables: RunTables, values: Values) -> None:
        self.values = values
        run, step = tables.run, tables.step
        changed = {name: bindparam(f"new_{name}", type_=run.c[name].type) for name in RUN_STATE}
        changing = update(run).where(run.c.number == bindparam("of_run"))
        self.run = Direct(database, changing.values(changed))
        result = {"result": bindparam("new_result", type_=run.c.result.type)}
        self.ended_run = Direct(database, changing.values(changed | result))
        columns = ("run", *STEP_COLUMNS)
        state = [name for name in STEP_COLUMNS if name not in ("name", "idx")]
        self.steps = RowsAtOnce(database, step, columns, update=state)
        self.results = RowsAtOnce(database, step, (*columns, "result"), update=[*state, "result"])
        self.signals = RowsAtOnce(database, tables.signal, SIGNAL, update=["taken_by"])
        self.journal = RowsAtOnce(database, tables.journal, ENTRY)
        memo = tables.memo
        forgotten = delete(memo).where(memo.c.run == bindparam("of_run"), memo.c.step == bindparam("of_step"))
        self.forget_memos = Direct(database, forgotten)


class Unsaved:
    """What was decided in a transaction and is not written yet."""

    def __init__(self, writes: RunWrites, now: int) -> None:
        self._writes = writes
        self._now = now
        self._clear()

    def _clear(self) -> None:
        self._runs: dict[int, RunRecord] = {}
        self._steps: dict[tuple[int, Key], StepRecord] = {}
        self._results: dict[tuple[int, Key], str] = {}
        self._signals: dict[tuple[int, str], SignalRecord] = {}
        self._entries: list[tuple[int, Entry]] = []

    def add(self, number: int, run: RunRecord, decision: Decision) -> None:
        """Raises ValueError or TypeError for a result that cannot be stored."""
        texts = {(number, key): self._writes.values.dumps(result) for key, result in decision.results.items()}
        self._results |= texts
        self._runs[number] = run
        self._steps.update({(number, record.key): record for record in decision.steps})
        self._signals.update({(number, signal.id): signal for signal in decision.signals})
        self._entries += [(number, entry) for entry in decision.entries if _is_kept(entry)]

    def written(self, number: int) -> None:
        """The row of the run says already what there is to be said."""
        del self._runs[number]

    def save(self, tx: Connection) -> None:
        """Write it, in so few statements."""
        writes, values = self._writes, self._writes.values
        for number, run in self._runs.items():
            self._save_run(tx, number, run)
        rows = {at: {"run": at[0], **row_of_step(record, values)} for at, record in self._steps.items()}
        writes.steps(tx, [row for at, row in rows.items() if at not in self._results])
        with_results = [row | {"result": self._results[at]} for at, row in rows.items() if at in self._results]
        writes.results(tx, with_results)
        writes.signals(tx, [row_of_signal(number, signal, values) for (number, _), signal in self._signals.items()])
        writes.journal(tx, [row_of_entry(number, entry, values) for number, entry in self._entries])
        self._clear()

    def _save_run(self, tx: Connection, number: int, run: RunRecord) -> None:
        row = row_of_run(run, self._writes.values) | {"changed_at": self._now}
        given: dict[str, Any] = {f"new_{name}": row[name] for name in RUN_STATE}
        given["of_run"] = number
        result = self._results.get((number, Key(RUN)))
        if result is None:
            self._writes.run.count(tx, given)
        else:
            self._writes.ended_run.count(tx, given | {"new_result": result})


def _is_kept(entry: Entry) -> bool:
    """Of a map's items only what went wrong, and that they were stored."""
    return entry.index is None or entry.why == CHUNK or entry.error is not None
