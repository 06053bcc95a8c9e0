"""A decision in the making: rows as they are after what has been decided so far."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import LONGEST
from .decision import Child, Decision, Post, Send, Timer, Withdraw
from .definition import Call, Role, Step
from .events import Event
from .journal import Entry
from .policies import MICRO, Error
from .records import Key, Parent, RunRecord, RunView, SignalRecord, StepRecord
from .states import StepState, check_run_move, check_step_move
from .values import RUN, references, resolve

__all__ = ["Draft", "task_id_of"]

#: Task ids and ids of child runs are made of what they stand for, so that nothing is ever made twice.
_NAMESPACE = uuid.UUID("6d9a0b52-41f8-4f53-9d6c-3f0c1f6f3b1a")


def task_id_of(run_id: str, key: Key, epoch: int) -> str:
    """The id of the Celery task of a step or item: the same for all attempts of an epoch."""
    return _id("task", run_id, key, epoch)


class Draft:
    """Reads a run, collects changes, shows them to who reads next; `decision` is all of them."""

    def __init__(self, view: RunView, at: int) -> None:
        self.view = view
        self.at = at
        self.run = view.run
        self.definition = view.definition
        #: Main steps that are over and whose followers have not been told.
        self.finished: deque[StepRecord] = deque()
        #: Whether a compensation is over, so that the next may begin.
        self.undone = False
        self._steps: dict[Key, StepRecord] = {}
        self._known: dict[Key, StepRecord] = {}
        self._results: dict[Key, Any] = {}
        self._signals: dict[str, SignalRecord] = {}
        self._entries: list[Entry] = []
        self._sends: dict[Key, Send] = {}
        self._withdrawals: list[Withdraw] = []
        self._timers: list[Timer] = []
        self._children: list[Child] = []
        self._posts: list[Post] = []
        self._end: dict[str, Any] = {}

    # Reading

    def step(self, name: str, index: int | None = None) -> StepRecord:
        """The row as it is now; of a step that has never been touched, the one it would have."""
        return self.steps([Key(name, index)])[0]

    def steps(self, keys: Sequence[Key]) -> list[StepRecord]:
        """Several rows, read at once."""
        unknown = [key for key in keys if key not in self._known]
        found = self.view.steps(unknown) if unknown else {}
        for key in unknown:
            self._known[key] = found.get(key) or self._fresh(key)
        return [self._known[key] for key in keys]

    def mains(self, names: Iterable[str] | None = None) -> list[StepRecord]:
        """The rows of these main steps, or of all."""
        chosen = (step.name for step in self.definition.main) if names is None else names
        return self.steps([Key(name) for name in chosen])

    def items(self, name: str, states: Collection[StepState]) -> list[StepRecord]:
        """The items of a map in these states."""
        found = [self._known.setdefault(item.key, item) for item in self.view.items(name, states)]
        return [item for item in found if item.state in states]

    def declared(self, record: StepRecord) -> Step:
        return self.definition.by_name[record.name]

    def pending_items(self, name: str, start: int, limit: int) -> list[StepRecord]:
        """The first pending items of a map from an index on, those just stored among them."""
        stored = [self._known.setdefault(item.key, item) for item in self.view.pending_items(name, start, limit)]
        fresh = [item for key, item in self._steps.items() if key.name == name and key.index is not None]
        found = {item.index: item for item in (*stored, *fresh) if item.index is not None and item.index >= start}
        return [found[index] for index in sorted(found) if found[index].state is StepState.PENDING][:limit]

    def resolve(self, value: Any, *, told: Step | None = None) -> Any:
        """The value with results in place of references; `told` is the handler that wants to know of the run."""
        names = {ref.step for ref in references(value)}
        found = self._results_of(names - {RUN})
        if RUN in names:
            found[RUN] = self._facts(told)
        return resolve(value, found.get)

    def open_signals(self, name: str) -> list[SignalRecord]:
        """What has come under this name and nobody has taken."""
        stored = (self._signals.get(signal.id, signal) for signal in self.view.signals(name))
        return [signal for signal in stored if signal.taken_by is None]

    # Writing

    def put(self, record: StepRecord, why: str, *, error: Error | None = None) -> StepRecord:
        """Keep a changed row, and an entry if users can see the change."""
        old = self.step(record.name, record.index)
        if (old.state, old.epoch, old.attempt) != (record.state, record.epoch, record.attempt):
            check_step_move(record.name, old.state, record.state)
            record = replace(record, changed_at=self.at)
            self._enter(record.state, why, record.epoch, record, error)
        self._known[record.key] = self._steps[record.key] = record
        return record

    def put_run(self, run: RunRecord, why: str = "") -> None:
        """Keep the changed run, and an entry if its state or epoch changed."""
        check_run_move(run.id, self.run.state, run.state)
        if (self.run.state, self.run.epoch) != (run.state, run.epoch):
            self._enter(run.state, why, run.epoch, None, None)
        self.run = run

    def created(self, why: str = "start") -> None:
        """The run begins its life in the state it has."""
        self._enter(self.run.state, why, self.run.epoch, None, None)

    def add_items(self, name: str, start: int, values: Sequence[Any], epoch: int) -> None:
        """Store items of a map, pending, with one entry for all of them."""
        for index, value in enumerate(values, start):
            item = StepRecord(name=name, index=index, epoch=epoch, value=value, changed_at=self.at)
            self._known[item.key] = self._steps[item.key] = item
        first = self._known[Key(name, start)]
        self._enter(StepState.PENDING, "items", epoch, first, None, count=len(values))

    def put_signal(self, signal: SignalRecord) -> None:
        self._signals[signal.id] = signal

    def set_result(self, key: Key, result: Any) -> None:
        self._results[key] = result

    def send(self, record: StepRecord, call: Call, *, due_at: int | None = None) -> None:
        """Publish the task of a row; `call` has no references any more."""
        key = record.key
        self._sends[key] = Send(
            task_id=task_id_of(self.run.id, key, record.epoch),
            name=record.name,
            index=record.index,
            epoch=record.epoch,
            attempt=record.attempt,
            task=call.task,
            args=call.args,
            kwargs=call.kwargs,
            options=call.options,
            retries=record.retries,
            due_at=due_at,
        )

    def withdraw(self, name: str, *, terminate: bool) -> None:
        self._withdrawals.append(Withdraw(name=name, terminate=terminate))

    def set_timer(self, kind: str, due_at: int, name: str = "") -> None:
        self._timers.append(Timer(kind=kind, due_at=due_at, name=name))

    def start_child(self, record: StepRecord, definition: Any) -> str:
        """Start the run that the row waits for; its id."""
        child_id = _id("run", self.run.id, record.key, record.epoch)
        parent = Parent(self.run.id, record.name, record.index)
        root = self.run.root_id or self.run.id
        self._children.append(Child(run_id=child_id, definition=definition, parent=parent, root_id=root))
        return child_id

    def post(self, run_id: str, event: Event) -> None:
        self._posts.append(Post(run_id=run_id, event=event))

    def end(self, result: Any) -> None:
        """The run is over: who waits for its result is told, and its key is free."""
        self._end = {"ended": True, "result": result, "released": self.run.concurrency_key}

    def decision(self) -> Decision:
        return Decision(
            run=self.run,
            steps=tuple(self._steps.values()),
            results=dict(self._results),
            signals=tuple(self._signals.values()),
            entries=tuple(self._entries),
            sends=tuple(self._sends.values()),
            withdrawals=tuple(self._withdrawals),
            timers=tuple(self._timers),
            children=tuple(self._children),
            posts=tuple(self._posts),
            **self._end,
        )

    def after(self, seconds: float) -> int:
        """So much later. Raises ValueError for more than a hundred years."""
        if not -LONGEST <= seconds <= LONGEST:
            raise ValueError(f"nothing waits for {seconds} seconds")
        return self.at + round(seconds * MICRO)

    def _fresh(self, key: Key) -> StepRecord:
        step = self.definition.by_name[key.name]
        waits_for = len(step.needs) if step.role is Role.MAIN and key.index is None else 0
        return StepRecord(name=key.name, index=key.index, waits_for=waits_for)

    def _results_of(self, names: Collection[str]) -> dict[str, Any]:
        """The results of steps as they are now, which the view cannot know of those that this event brings to an end."""
        done = [record for record in self.mains(names) if record.state is StepState.SUCCEEDED]
        stored = [record.name for record in done if Key(record.name) not in self._results and record.total != 0]
        found = {**(self.view.results(stored) if stored else {})}
        for record in done:
            if record.total is not None:
                found[record.name] = self._with_new_items(found.get(record.name) or [], record.name)
            elif Key(record.name) in self._results:
                found[record.name] = self._results[Key(record.name)]
        return found

    def _with_new_items(self, stored: Sequence[Any], name: str) -> list[Any]:
        new = {key.index: result for key, result in self._results.items() if key.name == name}
        return [new.get(index, result) for index, result in enumerate(stored)]

    def _facts(self, told: Step | None) -> dict[str, Any]:
        """What `$run` stands for: how the run ended, and which step (of those a handler is for) failed first."""
        run, failed = self.run, self._first_failed(told)
        error = failed.error if failed else run.error
        key = Key(RUN)
        result = self._results[key] if key in self._results else self.view.results([RUN])[RUN]
        return {
            "id": run.id,
            "state": str(run.state),
            "reason": run.reason,
            "step": failed.name if failed else None,
            "task_id": task_id_of(run.id, failed.key, failed.epoch) if failed else run.id,
            "task": failed and (call := self.declared(failed).call) and call.task,
            "error": error and error.as_dict(),
            "result": result,
        }

    def _first_failed(self, told: Step | None) -> StepRecord | None:
        if told is None or not told.of:
            return self.step(self.run.failed_step) if self.run.failed_step else None
        failed = [record for record in self.mains(told.of) if record.state is StepState.FAILED]
        return min(failed, key=lambda record: record.changed_at, default=None)

    def _enter(
        self, state: str, why: str, epoch: int, record: StepRecord | None, error: Error | None, *, count: int = 1
    ) -> None:
        name, index, attempt = (record.name, record.index, record.attempt) if record else (None, None, 0)
        self._entries.append(
            Entry(
                at=self.at,
                state=str(state),
                why=why,
                epoch=epoch,
                name=name,
                index=index,
                attempt=attempt,
                error=error,
                count=count,
            )
        )


def _id(kind: str, run_id: str, key: Key, epoch: int) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{kind}:{run_id}:{key.name}:{key.index}:{epoch}"))
