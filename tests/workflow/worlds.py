"""A store of runs with its messages in memory, for tests that say what happens next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import func, select

from celery_workflow.engine.definition import Definition, Step
from celery_workflow.engine.events import Event
from celery_workflow.engine.memory import Message
from celery_workflow.engine.states import RunState
from celery_workflow.runs.store import NewRun, Written
from celery_workflow.sql.run_schema import RunTables
from celery_workflow.sql.runs import SQLRunStore
from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.sql.database import Database

from .recording import Recorder, outcome_of

__all__ = ["World"]


class World:
    """A store, its messages, and a clock that is moved by hand."""

    def __init__(self, store: SQLRunStore, database: Database, tables: RunTables, clock: FakeClock) -> None:
        self.store = store
        self.database = database
        self.tables = tables
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
        return self.end(self.effects.message(name, index, run_id), result, **rest)

    def end(self, message: Message, result: Any = None, **rest: Any) -> Written:
        """Let the task of this message end, by whomever it is taken back meanwhile."""
        event = outcome_of(message, self.clock.now(), result, **rest)
        return self.store.give(message.run_id, lambda now, view: event, self.effects.settling(message))

    def fail(self, name: str, index: int | None = None, *, error: str = "Planned", run_id: str | None = None) -> Written:
        return self.succeed(name, index=index, run_id=run_id, error=error)

    def fail_run(self, run_id: str) -> None:
        """Let the one step of the run fail."""
        self.succeed("s", run_id=run_id, error="Planned")

    def count(self, table: str) -> int:
        """How many rows there are."""
        counted = select(func.count()).select_from(getattr(self.tables, table))
        return int(self.database.statement(lambda tx: tx.scalar(counted)) or 0)

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
