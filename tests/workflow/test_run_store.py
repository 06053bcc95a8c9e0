"""What the contract of the store of runs says, on each database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_workflow.engine.definition import Definition, Step
from celery_workflow.engine.events import (
    Event,
)
from celery_workflow.engine.records import Key
from celery_workflow.engine.states import RunState
from celery_workflow.engine.values import Ref
from celery_workflow.runs.store import NewRun, Written
from celery_workflow.sql.runs import SQLRunStore
from kombu_sqlqueue.clock import FakeClock

from .graphs import task
from .recording import Recorder, outcome_of


class World:
    """A store, its messages, and a clock that is moved by hand."""

    def __init__(self, store: SQLRunStore, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.effects = Recorder()

    def start(
        self, *steps: Step, id: str = "run", result: Any = None, definition: Definition | None = None, **rest: Any
    ) -> Any:
        definition = definition or Definition(name="w", steps=steps, result=result)
        return self.store.create([NewRun(id=id, definition=definition, **rest)], self.effects)[0]

    def give(self, event: Event, run_id: str = "run") -> Written:
        return self.store.give(run_id, lambda now, view: event, self.effects)

    def succeed(
        self, name: str, result: Any = None, index: int | None = None, run_id: str | None = None, **rest: Any
    ) -> Written:
        message = self.effects.message(name, index, run_id)
        event = outcome_of(message, self.clock.now(), result, **rest)
        return self.store.give(message.run_id, lambda now, view: event, self.effects.settling(message))

    def fail(self, name: str, index: int | None = None, error: str = "Planned") -> Written:
        return self.succeed(name, index=index, error=error)

    def deliver_all(self) -> list[Written]:
        """Everything that is due, and what comes of it."""
        done: list[Written] = []
        while due := self.store.due(100):
            done += [written for each in due if (written := self.store.deliver(each, self.effects)) is not None]
        return done

    def after(self, seconds: float) -> list[Written]:
        self.clock.advance(timedelta(seconds=seconds))
        return self.deliver_all()

    def state(self, run_id: str = "run") -> RunState:
        return self.store.get(run_id).record.state

    def states(self, run_id: str = "run") -> dict[str, str]:
        return {step.name: str(step.state) for step in self.store.steps(run_id)}


@pytest.fixture
def world(runs: SQLRunStore, clock: FakeClock) -> World:
    return World(runs, clock)


def test_a_chain_from_its_first_step_to_its_result(world: World):
    created = world.start(task("a"), task("b", Ref("a")), result=Ref("b"), inputs={"x": 1}, labels={"team": "red"})
    assert created.decision.run.state is RunState.RUNNING
    assert world.states() == {"a": "sent"}
    world.succeed("a", {"total": 3})
    assert world.effects.message("b").send.args == ({"total": 3},)
    world.succeed("b", [1, None])

    stored = world.store.get("run")
    assert stored.record.state is RunState.SUCCEEDED
    assert (stored.inputs, stored.labels) == ({"x": 1}, {"team": "red"})
    assert world.store.result("run", Key("$run")) == [1, None]
    assert world.store.result("run", Key("a")) == {"total": 3}
    assert world.effects.ends == [("run", [1, None])]
    told = [(entry.name, entry.state) for _, entry in world.store.journal("run")]
    assert told == [
        *[(None, "pending"), (None, "running"), ("a", "sent"), ("a", "succeeded"), ("b", "sent"), ("b", "succeeded")],
        (None, "succeeded"),
    ]
