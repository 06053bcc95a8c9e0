"""Drives runs in memory as a hostile world would: any order, lost replies, things twice, crashes at every point."""

from __future__ import annotations

import random
from typing import Any

from celery_workflow.engine.codec import from_json, to_json
from celery_workflow.engine.decision import Decision
from celery_workflow.engine.definition import Task, Wait
from celery_workflow.engine.events import Event, SignalReceived, StepFailed, StepStarted, StepSucceeded, StepWithdrawn
from celery_workflow.engine.invariants import faults
from celery_workflow.engine.journal import fold, picture_of
from celery_workflow.engine.memory import MemoryRun, MemoryStore, Message
from celery_workflow.engine.policies import Error
from celery_workflow.engine.records import Key

from .graphs import Plan, child_of, result_of


class Simulation:
    """One run (and its children) of a plan; `seed` chooses what happens next, `hostile` whether things go wrong."""

    def __init__(self, plan: Plan, seed: int, *, hostile: bool = True, store: MemoryStore | None = None) -> None:
        self.plan = plan
        self.random = random.Random(seed)
        self.hostile = hostile
        #: A test switches it off when the bug is mended.
        self.failing = True
        self.store = MemoryStore() if store is None else store
        #: The order in which tasks were first begun.
        self.begun: list[str] = []
        self._past: list[tuple[str, Event]] = []
        self.store.create("run", plan.definition)
        self.check("run")
        for step in plan.definition.main:
            if isinstance(step.action, Wait):
                signal = SignalReceived(at=0, id=f"id-{step.name}", name=step.action.signal, payload="yes")
                self.store.posts.append(("run", signal))

    @property
    def run(self) -> MemoryRun:
        return self.store.get("run")

    def states(self) -> dict[str, str]:
        mains = self.plan.definition.main
        return {step.name: str(self.run.rows[Key(step.name)].state) for step in mains if Key(step.name) in self.run.rows}

    def to_the_end(self) -> Simulation:
        for _ in range(20_000):
            if not self.step():
                return self
        raise AssertionError("it does not come to an end")

    def step(self) -> bool:
        """Let one thing happen; whether there was one."""
        running = [message for message in self.store.messages.values() if message.leased]
        things: list[Any] = [*running, *self.store.due_messages(), *self.store.due_timers(), *self.store.posts]
        if not things:
            due = self.store.next_due()
            self.store.now = self.store.now if due is None else due
            return due is not None
        thing = self.random.choice(things)
        if isinstance(thing, Message):
            (self._finish if thing.leased else self._deliver)(thing)
        elif thing in self.store.posts:
            self.store.posts.remove(thing)
            self.give(*thing)
        else:
            self._twice(lambda: self.store.fire(*thing), thing[0])
        if self.hostile and self._past and self.random.random() < 0.3:
            # What was lost comes late, more often than never.
            self.give(*self.random.choice(self._past[-5:] if self.random.random() < 0.7 else self._past))
        return True

    def give(self, run_id: str, event: Event) -> Decision:
        """An event as it comes from a queue: it has been JSON, and may come again at any time."""
        event = from_json(to_json(event))
        decision = self.store.give(run_id, event)
        self._past.append((run_id, event))
        self.check(run_id)
        return decision

    def check(self, run_id: str) -> None:
        run = self.store.get(run_id)
        assert faults(run.definition, run.run, run.rows) == []
        told = fold(run.journal)
        shown = picture_of(run.run, run.rows.values())
        # Steps that have been told of the end of another, and nothing else, are pending in both.
        shown.steps.update({key: step for key, step in told.steps.items() if key not in shown.steps})
        told.steps.update({key: step for key, step in shown.steps.items() if key not in told.steps})
        assert told == shown

    def _deliver(self, message: Message) -> None:
        message.deliveries += 1
        if self._mishap():
            return
        message.leased = True
        send = message.send
        if f"{send.name}:{send.index}" not in self.begun:
            self.begun.append(f"{send.name}:{send.index}")
        if self.random.random() < 0.5:
            self.give(message.run_id, StepStarted(at=self.store.now, **_which(message)))

    def _finish(self, message: Message) -> None:
        message.leased = False
        if self._mishap():
            return
        stopped = message.stop and self.random.random() < 0.5
        which = {"at": self.store.now, **_which(message)}
        event = StepWithdrawn(**which) if stopped else self._outcome(message, which)
        self.store.settle(message, from_json(to_json(event)))
        self._past.append((message.run_id, event))
        self.check(message.run_id)

    def _outcome(self, message: Message, which: dict[str, Any]) -> Event:
        record = self.store.get(message.run_id).rows[Key(message.send.name, message.send.index)]
        if self.failing and self.plan.fails(message.send.name, message.send.index, record.failures):
            return StepFailed(**which, error=Error(type="Planned"))
        step = self.store.get(message.run_id).definition.by_name[message.send.name]
        if isinstance(step.action, Task) and step.action.expands:
            return StepSucceeded(**which, expansion=child_of(step.name))
        return StepSucceeded(**which, result=result_of(message.send.name, message.send.args))

    def _twice(self, act: Any, run_id: str) -> None:
        act()
        self.check(run_id)
        if self._mishap():
            act()
            self.check(run_id)

    def _mishap(self) -> bool:
        return self.hostile and self.random.random() < 0.2


def _which(message: Message) -> dict[str, Any]:
    send = message.send
    return {"name": send.name, "index": send.index, "epoch": send.epoch, "attempt": send.attempt}
