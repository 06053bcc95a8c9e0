"""Writing what was decided about runs, with as few statements as may be."""

from __future__ import annotations

from itertools import chain
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
from .written_together import Part, WrittenTogether

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
        self.execute = WrittenTogether(database)
        changed = {name: bindparam(f"new_{name}", type_=run.c[name].type) for name in RUN_STATE}
        changing = update(run).where(run.c.number == bindparam("of_run"))
        result = {"result": bindparam("new_result", type_=run.c.result.type)}
        self._run, self._ended_run = changing.values(changed), changing.values(changed | result)
        self._run_alone, self._ended_run_alone = Direct(database, self._run), Direct(database, self._ended_run)
        columns = ("run", *STEP_COLUMNS)
        state = [name for name in STEP_COLUMNS if name not in ("name", "idx")]
        self.steps = RowsAtOnce(database, step, (*columns, "result"), update=state, keep=["result"])
        self.signals = RowsAtOnce(database, tables.signal, SIGNAL, update=["taken_by"])
        self.journal = RowsAtOnce(database, tables.journal, ENTRY)
        memo = tables.memo
        forgotten = delete(memo).where(memo.c.run == bindparam("of_run"), memo.c.step == bindparam("of_step"))
        self.forget_memos = Direct(database, forgotten)

    def run(self, number: int, run: RunRecord, result: str | None, now: int) -> Part:
        """The run as it is now; with a result, that too."""
        row = row_of_run(run, self.values) | {"changed_at": now}
        given: dict[str, Any] = {f"new_{name}": row[name] for name in RUN_STATE} | {"of_run": number}
        if result is None:
            return Part("run", "run", self._run, self._run_alone, given)
        return Part("run", "ended_run", self._ended_run, self._ended_run_alone, given | {"new_result": result})


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
        runs = [
            writes.run(number, run, self._results.get((number, Key(RUN))), self._now) for number, run in self._runs.items()
        ]
        steps = [
            {"run": at[0], **row_of_step(record, values), "result": self._results.get(at)}
            for at, record in self._steps.items()
        ]
        signals = [row_of_signal(number, signal, values) for (number, _), signal in self._signals.items()]
        journal = [row_of_entry(number, entry, values) for number, entry in self._entries]
        parts = (writes.steps.parts(steps), writes.signals.parts(signals), writes.journal.parts(journal))
        writes.execute(tx, [*runs, *chain.from_iterable(parts)])
        self._clear()


def _is_kept(entry: Entry) -> bool:
    """Of a map's items only what went wrong, and that they were stored."""
    return entry.index is None or entry.why == CHUNK or entry.error is not None
