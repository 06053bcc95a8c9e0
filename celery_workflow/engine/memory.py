"""Runs in memory: what the SQL store does, for tests. Each event is one step that happens wholly or not at all."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..errors import RunNotFoundError
from .codec import from_json, to_json
from .decision import Decision, Send, Timer, Withdraw
from .definition import Definition
from .events import DeadlinePassed, Event, RerunRequested, RetryRequested, RunAdmitted, StepWithdrawn, TimerFired
from .journal import Entry
from .machine import create, decide
from .records import Key, Parent, RunRecord, SignalRecord, StepRecord
from .states import StepState

__all__ = ["MemoryRun", "MemoryStore", "Message"]

#: The kind of the timer that lets a run start later.
START = "start"


@dataclass
class Message:
    """A task on its way; `deliveries` says how often it has been handed out, `stop` that it shall be cut off."""

    run_id: str
    send: Send
    deliveries: int = 0
    leased: bool = False
    stop: bool = False

    def is_due(self, now: int) -> bool:
        return not self.leased and (self.send.due_at is None or self.send.due_at <= now)


@dataclass
class MemoryRun:
    """A run's rows, which are also the engine's view of it."""

    definition: Definition
    run: RunRecord
    rows: dict[Key, StepRecord] = field(default_factory=dict)
    outputs: dict[Key, Any] = field(default_factory=dict)
    received: dict[str, SignalRecord] = field(default_factory=dict)
    journal: list[Entry] = field(default_factory=list)
    #: How many rows decisions have read, for tests of what an event costs.
    reads: int = 0

    def steps(self, keys: Iterable[Key]) -> dict[Key, StepRecord]:
        return self._count({key: self.rows[key] for key in keys if key in self.rows})

    def items(self, name: str, states: Collection[StepState]) -> list[StepRecord]:
        return list(self._count({i: item for i, item in enumerate(self._items(name)) if item.state in states}).values())

    def pending_items(self, name: str, start: int, limit: int) -> list[StepRecord]:
        pending = (item for item in self._items(name, start) if item.state is StepState.PENDING)
        return list(self._count(dict(enumerate(islice(pending, limit)))).values())

    def results(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self._result(name) for name in names}

    def signals(self, name: str) -> list[SignalRecord]:
        found = [signal for signal in self.received.values() if signal.name == name and signal.taken_by is None]
        return sorted(found, key=lambda signal: signal.order)

    def has_signal(self, signal_id: str) -> bool:
        return signal_id in self.received

    def apply(self, decision: Decision) -> None:
        """Write the rows; what else is in the decision is the store's."""
        if decision.run is not None:
            self.run = decision.run
        self.rows |= {record.key: record for record in decision.steps}
        self.outputs |= decision.results
        self.received |= {signal.id: signal for signal in decision.signals}
        self.journal += decision.entries

    def _result(self, name: str) -> Any:
        record = self.rows.get(Key(name))
        if record is not None and record.total is not None:
            return [self._result_of_item(name, index) for index in range(record.total)]
        return self.outputs.get(Key(name))

    def _result_of_item(self, name: str, index: int) -> Any:
        item = self.rows.get(Key(name, index))
        return self.outputs.get(Key(name, index)) if item and item.state is StepState.SUCCEEDED else None

    def _items(self, name: str, start: int = 0) -> Iterator[StepRecord]:
        inserted = self.rows[Key(name)].inserted if Key(name) in self.rows else 0
        return (self.rows[Key(name, index)] for index in range(start, inserted))

    def _count(self, found: dict[Any, StepRecord]) -> dict[Any, StepRecord]:
        self.reads += len(found)
        return found


class MemoryStore:
    """All runs, the messages of their steps, their timers, and events on their way to other runs."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self.runs: dict[str, MemoryRun] = {}
        self.messages: dict[str, Message] = {}
        self.timers: list[tuple[str, Timer]] = []
        self.posts: deque[tuple[str, Event]] = deque()
        self._lines: dict[str, deque[str]] = defaultdict(deque)

    def create(
        self,
        run_id: str,
        definition: Definition,
        *,
        concurrency_key: str | None = None,
        start_at: int | None = None,
        parent: Parent | None = None,
        root_id: str | None = None,
    ) -> MemoryRun:
        """The new run, or the one that has this id already. Runs of one key follow each other, in the order of their turns:
        one that starts later takes its place in the line then."""
        if run_id in self.runs:
            return self.runs[run_id]
        is_later = start_at is not None and start_at > self.now
        wait = is_later or not self._is_first(concurrency_key, run_id)
        decision = create(
            run_id,
            definition,
            at=self.now,
            start_at=start_at,
            wait=wait,
            concurrency_key=concurrency_key,
            parent=parent,
            root_id=root_id,
        )
        assert decision.run is not None
        # A definition has been through the database before anyone works with it.
        stored: Definition = from_json(to_json(definition))
        self.runs[run_id] = MemoryRun(stored, decision.run)
        self._apply(run_id, decision)
        if start_at is not None and is_later:
            self.timers.append((run_id, Timer(kind=START, due_at=start_at)))
        return self.runs[run_id]

    def get(self, run_id: str) -> MemoryRun:
        if run_id not in self.runs:
            raise RunNotFoundError(f"there is no run {run_id}")
        return self.runs[run_id]

    def give(self, run_id: str, event: Any) -> Decision:
        """Let an event happen to a run. One that is done again takes its place in the line of its key."""
        run = self.get(run_id)
        line = self._lines[run.run.concurrency_key] if run.run.concurrency_key else deque()
        is_again = isinstance(event, RetryRequested | RerunRequested)
        decision = decide(run, replace(event, wait=bool(line)) if is_again else event)
        if is_again and not decision.ignored:
            line.append(run_id)
        self._apply(run_id, decision)
        return decision

    def settle(self, message: Message, event: Event) -> Decision:
        """An outcome: the message goes in the same step, unless another attempt has taken its place."""
        if self.messages.get(message.send.task_id) is message:
            del self.messages[message.send.task_id]
        return self.give(message.run_id, event)

    def due_messages(self) -> list[Message]:
        return [message for message in self.messages.values() if message.is_due(self.now)]

    def due_timers(self) -> list[tuple[str, Timer]]:
        return [(run_id, timer) for run_id, timer in self.timers if timer.due_at <= self.now]

    def next_due(self) -> int | None:
        """When something is due next, if nothing is now."""
        messages = [message.send.due_at for message in self.messages.values() if message.send.due_at is not None]
        later = [due for due in (*messages, *(timer.due_at for _, timer in self.timers)) if due > self.now]
        return min(later, default=None)

    def fire(self, run_id: str, timer: Timer) -> Decision:
        """Give the run what the timer was set for; the timer goes in the same step."""
        if (run_id, timer) in self.timers:
            self.timers.remove((run_id, timer))
        if timer.kind == START:
            is_first = self._is_first(self.get(run_id).run.concurrency_key, run_id)
            return self.give(run_id, RunAdmitted(at=self.now)) if is_first else Decision(ignored="others come first")
        if timer.kind == "deadline":
            return self.give(run_id, DeadlinePassed(at=self.now, due_at=timer.due_at))
        return self.give(run_id, TimerFired(at=self.now, name=timer.name, kind=timer.kind, due_at=timer.due_at))

    def _apply(self, run_id: str, decision: Decision) -> None:
        self.runs[run_id].apply(decision)
        for send in decision.sends:
            self.messages[send.task_id] = Message(run_id, send)
        self.timers += [(run_id, timer) for timer in decision.timers]
        for child in decision.children:
            self.create(child.run_id, child.definition, parent=child.parent, root_id=child.root_id)
        self.posts += [(post.run_id, post.event) for post in decision.posts]
        for withdrawal in decision.withdrawals:
            self._withdraw(run_id, withdrawal)
        if decision.ended:
            self.timers = [(owner, timer) for owner, timer in self.timers if owner != run_id]
        if decision.released:
            self._release(decision.released, run_id)

    def _withdraw(self, run_id: str, withdrawal: Withdraw) -> None:
        mine = [m for m in self.messages.values() if m.run_id == run_id and m.send.name == withdrawal.name]
        for message in mine:
            if message.leased:
                message.stop = message.stop or withdrawal.terminate
                continue
            send = message.send
            del self.messages[send.task_id]
            event = StepWithdrawn(at=self.now, name=send.name, index=send.index, epoch=send.epoch, attempt=send.attempt)
            self.posts.append((run_id, event))

    def _is_first(self, key: str | None, run_id: str) -> bool:
        """Take a place in the line of the key; whether nobody is before it."""
        if not key:
            return True
        self._lines[key].append(run_id)
        return self._lines[key][0] == run_id

    def _release(self, key: str, run_id: str) -> None:
        line = self._lines[key]
        was_first = bool(line) and line[0] == run_id
        if run_id in line:
            line.remove(run_id)
        if was_first and line:
            self.posts.append((line[0], RunAdmitted(at=self.now)))
