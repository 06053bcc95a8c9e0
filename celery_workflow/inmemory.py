"""The runs of an app in memory: what `runs.runtime.Runtime` is elsewhere, so that nothing notices the difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from celery import Celery

from .engine.decision import Decision
from .engine.events import Event, Outcome, RerunRequested, RunAdmitted
from .engine.journal import Entry
from .engine.memory import MemoryRun, MemoryStore
from .engine.policies import MICRO
from .engine.records import Key, StepRecord
from .runs.context import StepContext
from .runs.outcomes import Outcomes
from .runs.store import Happening, NewRun, StoredRun, Written
from .runs.telling import tell

__all__ = ["Attempt", "Context", "InMemory", "Runs", "progress_of"]


class Runs(MemoryStore):
    """The store of the engine's tests, with what users give a run, with memos, and with signals of Celery's kind."""

    def __init__(self, app: Celery, now: int = 0) -> None:
        super().__init__(now)
        self._app = app
        self._given: dict[str, NewRun] = {}
        self._memos: dict[tuple[str, Key, str], Any] = {}

    def add(self, new: NewRun) -> bool:
        """Create a run; False if its id is there already."""
        if new.id in self.runs:
            return False
        self._given[new.id] = new
        self.create(new.id, new.definition, concurrency_key=new.concurrency_key, start_at=new.start_at)
        return True

    def given(self, run_id: str) -> NewRun | None:
        """What a run was started with; one that a step has started has its labels, tenant and priority from above."""
        parent = self.get(run_id).run.parent
        return self._given.get(run_id) if parent is None else self.given(parent.run_id)

    def give(self, run_id: str, event: Any) -> Decision:
        before = self.get(run_id).run
        request = before.request if isinstance(event, RunAdmitted) else event
        decision = super().give(run_id, event)
        if isinstance(request, RerunRequested) and decision.run and decision.run.epoch > before.epoch:
            again = {step.name for step in decision.steps if step.epoch == decision.run.epoch}
            self._memos = {
                each: kept for each, kept in self._memos.items() if each[0] != run_id or each[1].name not in again
            }
        return decision

    def _apply(self, run_id: str, decision: Decision) -> None:
        super()._apply(run_id, decision)
        tell(self._app, decision)

    def now_as_datetime(self) -> datetime:
        return datetime.fromtimestamp(self.now / MICRO, UTC)

    def memo(self, run_id: str, key: Key, name: str) -> tuple[bool, Any]:
        return (run_id, key, name) in self._memos, self._memos.get((run_id, key, name))

    def keep_memo(self, run_id: str, key: Key, name: str, value: Any) -> Any:
        return self._memos.setdefault((run_id, key, name), value)


class Attempt:
    """A task while it runs for a step; `outcome` is the first that was told."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        #: What it has sent besides.
        self.messages: list[Any] = []


class Home:
    """Where messages are: nobody has to settle them."""

    is_broker = False


class InMemory:
    """Stands for the `Runtime` and the `Outcomes` of an app."""

    backend_is_here = False

    def __init__(self, app: Celery, runs: Runs) -> None:
        self.app = app
        self.home = Home()
        self.store = Looking(runs)
        self.outcomes = Outcomes(self)  # type: ignore[arg-type]
        self.attempt: Attempt | None = None
        self._runs = runs

    def now(self) -> datetime:
        return self._runs.now_as_datetime()

    def create(self, new: Sequence[NewRun]) -> list[bool]:
        return [self._runs.add(each) for each in new]

    def give(self, run_id: str, happening: Happening, *, lease: Any = None, record: Any = None) -> Written:
        """What a step's task comes to is kept until the harness says that it is told; all else happens at once."""
        event = happening(self._runs.now, self._runs.get(run_id))
        if isinstance(event, Outcome) and self.attempt is not None:
            self.attempt.outcome = self.attempt.outcome or event
            return Written(decision=Decision())
        return Written(decision=Decision() if event is None else self._runs.give(run_id, event))

    def tell(self, run_id: str, event: Callable[[int], Event]) -> Decision:
        return self.give(run_id, lambda now, view: event(now)).decision

    def forget_result(self, run_id: str) -> None:
        """Nobody keeps a result besides the run."""


class Context(StepContext):
    """What `current()` answers here."""

    @contextmanager
    def transaction(self, session: Any) -> Iterator[Any]:
        """The block runs on the session as it is given. What it completed and sent counts unless it raises."""
        attempt: Attempt = self._runtime.attempt
        before = len(attempt.messages)
        try:
            with super().transaction(session) as begun:
                yield begun
        except BaseException:
            attempt.outcome = None
            del attempt.messages[before:]
            raise


class Looking:
    """The part of `RunStore` by which handles look at runs."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.memo, self.keep_memo = runs.memo, runs.keep_memo

    def now(self) -> int:
        return self._runs.now

    def get(self, run_id: str) -> StoredRun:
        run, given = self._runs.get(run_id), self._runs.given(run_id)
        return StoredRun(
            record=run.run,
            definition=run.definition,
            inputs=given.inputs if given is not None and run.run.parent is None else {},
            labels=given.labels if given is not None else {},
            tenant=given.tenant if given is not None else None,
            priority=given.priority if given is not None else None,
        )

    def result(self, run_id: str, key: Key) -> Any:
        run = self._runs.get(run_id)
        return run.outputs.get(key) if key.index is not None else run.results([key.name])[key.name]

    def results(self, run_id: str, names: Collection[str]) -> Mapping[str, Any]:
        return self._runs.get(run_id).results(names)

    def steps(self, run_id: str) -> list[StepRecord]:
        return [row for key, row in self._runs.get(run_id).rows.items() if key.index is None]

    def items(self, run_id: str, name: str, *, after: int = -1, limit: int = 1000) -> list[StepRecord]:
        rows = self._runs.get(run_id).rows
        found = [row for key, row in rows.items() if key.name == name and key.index is not None and key.index > after]
        return sorted(found, key=lambda row: row.index or 0)[:limit]

    def journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[tuple[int, Entry]]:
        return list(enumerate(self._runs.get(run_id).journal, 1))[after : None if limit is None else after + limit]

    def errors(self, run_id: str, *, newest: int = 20) -> list[Entry]:
        return [entry for entry in self._runs.get(run_id).journal if entry.error is not None][-newest:]

    def progress(self, run_id: str) -> Mapping[str, int]:
        return progress_of(self._runs.get(run_id))

    def children(self, run_id: str) -> list[str]:
        runs = self._runs.runs.values()
        return [each.run.id for each in runs if each.run.parent is not None and each.run.parent.run_id == run_id]


def progress_of(run: MemoryRun) -> dict[str, int]:
    """How many steps and items are in each state."""
    counts = Counter(str(row.state) for row in run.rows.values() if row.total is None)
    counts["pending"] += sum(Key(step.name) not in run.rows for step in run.definition.main)
    return {state: count for state, count in counts.items() if count}
