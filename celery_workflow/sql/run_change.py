"""What follows from events, within one transaction: decided by the engine, written, and done outside by `Effects`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from ..engine.decision import Child, Decision, Send, Timer, Withdraw
from ..engine.draft import task_id_of
from ..engine.events import (
    DeadlinePassed,
    Event,
    RerunRequested,
    RetryRequested,
    RunAdmitted,
    StepFailed,
    StepWithdrawn,
    TimerFired,
)
from ..engine.machine import create, decide
from ..engine.records import Key, RunRecord, StepRecord
from ..engine.states import IN_FLIGHT
from ..runs.store import Effects, NewRun
from .definitions import Definitions
from .lines import Lines
from .locked_run import Inherited, LockedRun, RunReads
from .new_runs import NewRuns
from .run_events import Kind, Stored, StoredEvents
from .run_writing import RunWrites, Unsaved

__all__ = ["Change", "Parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a change needs of the store."""

    reads: RunReads
    writes: RunWrites
    events: StoredEvents
    lines: Lines
    new_runs: NewRuns
    definitions: Definitions


class Change:
    """What one transaction does. Nothing is certain to be written before `done`, which is called once."""

    def __init__(self, parts: Parts, tx: Connection, now: int, effects: Effects) -> None:
        self.now = now
        self._parts = parts
        self._tx = tx
        self._effects = effects
        self._unsaved = Unsaved(parts.writes, now)
        self._events: list[Stored] = []
        self._ended: set[str] = set()

    def view(self, number: int, run: RunRecord, digest: str, inherited: Inherited) -> LockedRun:
        """A run that is locked."""
        definition = self._parts.definitions.get(self._tx, digest)
        return LockedRun(self._tx, number, run, definition, inherited, self._parts.reads, self._unsaved)

    def happen(self, view: LockedRun, event: Event) -> Decision:
        """Let the event happen to the run, with all that follows."""
        request = view.run.request if isinstance(event, RunAdmitted) else event
        decision = self._decide(view, event)
        if not decision.ignored:
            if isinstance(request, RerunRequested) and decision.run and decision.run.epoch > view.run.epoch:
                self._forget_memos(view.number, decision)
            view.take(decision)
            self._effects.decided(self._tx, decision)
            self._follow(view, decision)
        return decision

    def create(self, runs: Sequence[NewRun]) -> dict[int, tuple[Decision, slice]]:
        """Create those whose id is new, and start those whose turn it is.

        The answer has for the place of each its decision, and which events came of it.
        """
        self._parts.definitions.store(self._tx, [new.definition for new in runs])
        drafts = [_created(new, self.now, wait=self._waits(new)) for new in runs]
        records = [draft.run for draft in drafts if draft.run is not None]
        numbers = self._parts.new_runs.insert(self._tx, runs, records, self.now)
        decisions: dict[int, Decision] = {}
        # Several keys in order, so that two who create runs of the same do not wait for each other.
        for place in sorted(numbers, key=lambda place: (runs[place].concurrency_key or "", place)):
            decisions[place] = self._take_place(runs[place], numbers[place], drafts[place])
        views = {
            place: self._taken(runs[place], numbers[place], decisions[place], drafts[place]) for place in sorted(numbers)
        }
        return {place: (decisions[place], self._begin(runs[place], view, decisions[place])) for place, view in views.items()}

    def done(self) -> list[int | None]:
        """Write what is not written yet. The answer has for each event its number if it is due already."""
        self._unsaved.save(self._tx)
        kept = [place for place, stored in enumerate(self._events) if self._is_wanted(stored)]
        numbers = self._parts.events.store(self._tx, [self._events[place] for place in kept], self.now)
        due: list[int | None] = [None] * len(self._events)
        for place, number in zip(kept, numbers, strict=True):
            due[place] = number if self._events[place].due_at <= self.now else None
        return due

    # -- an event -----------------------------------------------------------------------------

    def _decide(self, view: LockedRun, event: Event) -> Decision:
        key = view.run.concurrency_key
        if key is None or not isinstance(event, RetryRequested | RerunRequested):
            return decide(view, event)
        decision = decide(view, event)
        if decision.ignored or self._parts.lines.join(self._tx, key, view.number):
            return decision
        return decide(view, replace(event, wait=True))

    def _follow(self, view: LockedRun, decision: Decision) -> None:
        """What a decision says besides rows; and the same for the messages that are taken back."""
        events = deque(self._outside(view, decision))
        while events:
            following = decide(view, events.popleft())
            if not following.ignored:
                view.take(following)
                events.extend(self._outside(view, following))

    def _outside(self, view: LockedRun, decision: Decision) -> list[Event]:
        """Do it; the answer tells which messages were taken back."""
        run = view.run
        refused = self._sent(view, decision) if decision.sends else []
        self._events += [Stored(run.id, Kind.TIMER, timer.due_at, _event_of(timer, self.now)) for timer in decision.timers]
        if decision.children:
            self.create([_new_child(child, view.inherited) for child in decision.children])
        self._events += [Stored(post.run_id, Kind.POST, self.now, post.event) for post in decision.posts]
        withdrawn = [event for withdrawal in decision.withdrawals for event in self._withdrawn(view, withdrawal)]
        if decision.ended:
            self._ended.add(run.id)
            self._unsaved.save(self._tx)
            self._parts.events.forget(self._tx, run.id)
            self._effects.ended(self._tx, run, view.definition, decision.result)
        if decision.released is not None:
            following = self._parts.lines.leave(self._tx, decision.released, view.number)
            if following is not None:
                self._events.append(Stored(following, Kind.TURN, self.now, RunAdmitted(at=self.now)))
        return [*refused, *withdrawn]

    def _sent(self, view: LockedRun, decision: Decision) -> list[Event]:
        """Send the tasks; those that cannot be sent have failed."""
        self._unsaved.save(self._tx)
        sends = [_prioritised(send, view.inherited.priority) for send in decision.sends]
        refused = self._effects.send(self._tx, view.run, view.definition, sends)
        return [
            StepFailed(at=self.now, name=send.name, index=send.index, epoch=send.epoch, attempt=send.attempt, error=error)
            for send, error in refused
        ]

    def _withdrawn(self, view: LockedRun, withdrawal: Withdraw) -> Iterator[Event]:
        """Take back the messages of a step or of a map's items; those that were are to be told."""
        key = Key(withdrawal.name)
        record = view.steps([key])[key]
        records = [record] if record.total is None else view.items(withdrawal.name, IN_FLIGHT)
        tasks = {task_id_of(view.run.id, each.key, each.epoch): each for each in records if each.state in IN_FLIGHT}
        if tasks:
            # What is to be taken back may have been sent by the same decision.
            taken = set(self._effects.take_back(self._tx, view.run, list(tasks), terminate=withdrawal.terminate))
            yield from (_withdrawal_of(each, self.now) for task_id, each in tasks.items() if task_id in taken)

    def _forget_memos(self, number: int, decision: Decision) -> None:
        for record in decision.steps:
            if record.index is None and decision.run is not None and record.epoch == decision.run.epoch:
                self._parts.writes.forget_memos.count(self._tx, {"of_run": number, "of_step": record.name})

    def _is_wanted(self, stored: Stored) -> bool:
        """Not if it was for a run that has ended since, in this very transaction."""
        return stored.kind is Kind.POST or stored.run_id not in self._ended

    # -- new runs -----------------------------------------------------------------------------

    def _waits(self, new: NewRun) -> bool:
        return new.concurrency_key is not None or self._is_later(new)

    def _is_later(self, new: NewRun) -> bool:
        return new.start_at is not None and new.start_at > self.now

    def _take_place(self, new: NewRun, number: int, draft: Decision) -> Decision:
        """In the line of its key, if it has one and is to start now."""
        if new.concurrency_key is None or self._is_later(new):
            return draft
        has_key = self._parts.lines.join(self._tx, new.concurrency_key, number)
        return _created(new, self.now, wait=False) if has_key else draft

    def _taken(self, new: NewRun, number: int, decision: Decision, draft: Decision) -> LockedRun:
        assert decision.run is not None
        inherited = Inherited(new.labels, new.tenant, new.priority)
        view = self.view(number, decision.run, new.definition.digest, inherited)
        view.take(decision)
        if decision is draft and not decision.ended:
            self._unsaved.written(number)
        return view

    def _begin(self, new: NewRun, view: LockedRun, decision: Decision) -> slice:
        first = len(self._events)
        if new.start_at is not None and self._is_later(new):
            self._events.append(Stored(new.id, Kind.START, new.start_at, RunAdmitted(at=new.start_at)))
        self._follow(view, decision)
        return slice(first, len(self._events))


def _created(new: NewRun, now: int, *, wait: bool) -> Decision:
    return create(
        new.id,
        new.definition,
        at=now,
        start_at=new.start_at,
        wait=wait,
        concurrency_key=new.concurrency_key,
        parent=new.parent,
        root_id=new.root_id,
    )


def _new_child(child: Child, inherited: Inherited) -> NewRun:
    return NewRun(
        id=child.run_id,
        definition=child.definition,
        labels=inherited.labels,
        tenant=inherited.tenant,
        priority=inherited.priority,
        parent=child.parent,
        root_id=child.root_id,
    )


def _prioritised(send: Send, priority: int | None) -> Send:
    if priority is None or send.options.get("priority") is not None:
        return send
    return replace(send, options={**send.options, "priority": priority})


def _event_of(timer: Timer, now: int) -> Event:
    if timer.kind == "deadline":
        return DeadlinePassed(at=now, due_at=timer.due_at)
    return TimerFired(at=now, name=timer.name, kind=timer.kind, due_at=timer.due_at)


def _withdrawal_of(record: StepRecord, now: int) -> StepWithdrawn:
    return StepWithdrawn(at=now, name=record.name, index=record.index, epoch=record.epoch, attempt=record.attempt)
