"""Workflows in a test: the real tasks run in this process, time is skipped, crashes happen where the test wants them."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery

from .engine import drawing, journal
from .engine.definition import Definition, Role
from .engine.draft import task_id_of
from .engine.events import (
    CancelRequested,
    Outcome,
    RerunRequested,
    RetryRequested,
    SignalReceived,
    StepStarted,
    StepSucceeded,
    StepWithdrawn,
)
from .engine.memory import MemoryRun, Message
from .engine.policies import MICRO, Error
from .engine.records import Key, StepRecord
from .engine.states import RunState, StepState
from .errors import DefinitionError, RunFailedError
from .inmemory import InMemory, Runs, progress_of
from .inprocess import Sent, run_task, taking_over, through_serializer
from .runs.hooks import install
from .runs.identity import StepIdentity
from .runs.serializing import as_stored
from .runs.workflows import Durable, Starter, Workflow, durable

__all__ = ["CRASH_POINTS", "HarnessRun", "StepInfo", "WorkflowHarness"]

#: Where a worker can die, or a reply get lost:
#: claimed, and the task not begun; done, and nobody told; told, and told again; two workers at once, both tell.
CRASH_POINTS = ("before_start", "after_effect_before_commit", "after_commit", "lease_lost")


@dataclass(frozen=True)
class StepInfo:
    """A step as a test wants to see it."""

    status: str
    attempt: int
    epoch: int
    task_id: str
    result: Any
    error: Error | None


class WorkflowHarness:
    """Runs workflows of an app without broker, worker or database.

    Time stands still but for `advance` and `run_to_end`. With a `seed`, what is due is done in a random order.
    """

    def __init__(self, app: Celery, *, seed: int | None = None, start_at: datetime | None = None) -> None:
        # Registers the task that calls error callbacks.
        from .building import errbacks  # noqa: F401

        self.app = app
        app.finalize()
        install(app)
        started = start_at or datetime(2026, 1, 1, tzinfo=UTC)
        self.store = Runs(app, now=round(started.timestamp() * MICRO))
        #: Plain tasks that steps have sent.
        self.sent: list[Sent] = []
        #: Each time a task was run: (step name, item index).
        self.executions: list[tuple[str, int | None]] = []
        self._random = None if seed is None else random.Random(seed)
        self._crashes: Counter[tuple[str, str | None]] = Counter()
        self._memory = InMemory(app, self.store)

    @property
    def now(self) -> datetime:
        return self.store.now_as_datetime()

    def start(self, what: Starter | Workflow | Definition | Any, /, *, _id: str | None = None, **inputs: Any) -> HarnessRun:
        """Start a run of a workflow, of what its `options(...)` gave, of a definition or of a canvas.

        As there, a run id that is there already gives that run. Raises ValueError for a workflow of another app.
        """
        starter = self._starter(what)
        if starter.app is not self.app:
            raise ValueError(f"{what!r} is of the app {starter.app.main!r}, and this harness runs {self.app.main!r}")
        with taking_over(self._memory):
            return HarnessRun(self, starter.start(_id=_id, **inputs).id)

    def get(self, run_id: str) -> HarnessRun:
        """A run that was started here, by a test or by another run."""
        self.store.get(run_id)
        return HarnessRun(self, run_id)

    def crash_at(self, point: str, *, step: str | None = None, times: int = 1) -> None:
        """The next `times` that a step (any, if none is named) comes to this point, something goes wrong there."""
        if point not in CRASH_POINTS:
            raise ValueError(f"{point!r} is none of {', '.join(CRASH_POINTS)}")
        self._crashes[point, step] += times

    def run_until_idle(self) -> None:
        """Do all that is due now, and what becomes due by it."""
        while self._do_one():
            pass

    def advance(self, **duration: float) -> None:
        """Let time pass (keywords as of timedelta); what becomes due on the way is done in its order."""
        until = self.store.now + round(timedelta(**duration).total_seconds() * MICRO)
        self.run_until_idle()
        while (due := self.store.next_due()) is not None and due <= until:
            self.store.now = due
            self.run_until_idle()
        self.store.now = until

    def run_to_end(self) -> None:
        """Do all there is to do, skipping the time between, until only signals could move anything."""
        self.run_until_idle()
        while (due := self.store.next_due()) is not None:
            self.store.now = due
            self.run_until_idle()

    def _do_one(self) -> bool:
        things: list[Callable[[], object]] = [
            *(lambda post=post: self._post(post) for post in self.store.posts),
            *(lambda timer=timer: self.store.fire(*timer) for timer in self.store.due_timers()),
            *(lambda message=message: self._deliver(message) for message in self._due_messages()),
        ]
        if things:
            (self._random.choice(things) if self._random else things[0])()
        return bool(things)

    def _due_messages(self) -> list[Message]:
        return sorted(self.store.due_messages(), key=lambda message: -self._priority(message))

    def _priority(self, message: Message) -> int:
        own, given = message.send.options.get("priority"), self.store.given(message.run_id)
        return own if own is not None else (given.priority if given is not None else None) or 0

    def _post(self, post: Any) -> None:
        self.store.posts.remove(post)
        self.store.give(*post)

    def _deliver(self, message: Message) -> None:
        send = message.send
        message.leased = True
        message.deliveries += 1
        if self._crashes_at("before_start", send.name):
            message.leased = False
            return
        self.store.give(message.run_id, StepStarted(at=self.store.now, **_which(message)))
        outcome = self._run(message)
        twice = self._crashes_at("lease_lost", send.name)
        again = self._run(message) if twice else outcome
        message.leased = False
        if self._crashes_at("after_effect_before_commit", send.name):
            return
        self.store.settle(message, outcome)
        if twice or self._crashes_at("after_commit", send.name):
            self.store.give(message.run_id, again)

    def _run(self, message: Message) -> Outcome:
        send = message.send
        if send.task not in self.app.tasks:
            raise DefinitionError(f"step {send.name!r}: this program has no task {send.task!r}")
        self.executions.append((send.name, send.index))
        args, kwargs = through_serializer([list(send.args), send.kwargs], self.app.conf.task_serializer)
        step = StepIdentity.of(message.run_id, self.store.get(message.run_id).definition, send)
        done = run_task(self._memory, send.task, args, kwargs, step=step, request=self._request(message))
        self.sent += done.messages
        if message.stop:
            return StepWithdrawn(at=self.store.now, **step.which)
        # A task that is rejected tells nobody of it.
        return done.outcome or StepSucceeded(at=self.store.now, **step.which)

    def _request(self, message: Message) -> dict[str, Any]:
        send, run = message.send, self.store.get(message.run_id).run
        known = {key: send.options[key] for key in ("headers", "stamped_headers", "stamps") if key in send.options}
        stamps = {key: send.options[key] for key in send.options.get("stamped_headers") or () if key in send.options}
        return {
            "id": send.task_id,
            "task": send.task,
            "args": list(send.args),
            "kwargs": send.kwargs,
            "retries": send.retries,
            "root_id": run.root_id or run.id,
            "parent_id": run.id,
            **known,
            **stamps,
        }

    def _crashes_at(self, point: str, step: str) -> bool:
        for wanted in ((point, step), (point, None)):
            if self._crashes[wanted] > 0:
                self._crashes[wanted] -= 1
                return True
        return False

    def _starter(self, what: Any) -> Starter:
        if isinstance(what, Workflow):
            return what.options()
        if isinstance(what, Definition):
            return Durable(self.app, what)
        return what if isinstance(what, Starter) else durable(what, app=self.app)


class HarnessRun:
    """A run in a harness."""

    def __init__(self, harness: WorkflowHarness, run_id: str) -> None:
        self.harness = harness
        self.id = run_id

    @property
    def status(self) -> str:
        return str(self._stored.run.state)

    def result(self) -> Any:
        """The result. Raises RunFailedError if there is none."""
        run = self._stored.run
        if not run.state.is_over:
            raise RunFailedError(f"run {self.id} is {run.state}: run_until_idle() and advance() go on with it")
        if run.state is not RunState.SUCCEEDED:
            why = f": {run.error.type}: {run.error.message}" if run.error else f": {run.reason}"
            raise RunFailedError(f"run {self.id} ended as {run.state}{why}")
        return self._stored.results(["$run"])["$run"]

    def steps(self) -> dict[str, StepInfo]:
        """All steps by name; handlers and compensations only if they were begun."""
        stored = self._stored
        names = [step.name for step in stored.definition.steps if step.role is Role.MAIN or Key(step.name) in stored.rows]
        results = stored.results(names)
        return {name: self._step(stored.rows.get(Key(name), StepRecord(name=name)), results[name]) for name in names}

    def _step(self, row: StepRecord, result: Any) -> StepInfo:
        return StepInfo(
            status=str(row.state),
            attempt=row.attempt,
            epoch=row.epoch,
            task_id=task_id_of(self.id, row.key, row.epoch),
            result=result if row.state is StepState.SUCCEEDED else None,
            error=row.error,
        )

    def progress(self) -> dict[str, int]:
        """How many steps are in each state, and `total`; an item of a map counts as one, too."""
        counts = progress_of(self._stored)
        return {**counts, "total": sum(counts.values())}

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The last 20 failures of attempts, oldest first."""
        return journal.errors(self._stored.journal)

    @property
    def journal(self) -> list[journal.Entry]:
        return list(self._stored.journal)

    def children(self) -> list[HarnessRun]:
        """The runs that steps of this one started."""
        return [
            HarnessRun(self.harness, run.run.id)
            for run in self.harness.store.runs.values()
            if run.run.parent is not None and run.run.parent.run_id == self.id
        ]

    def graph(self, form: str = "mermaid") -> str:
        """The graph with the states of its steps, as "mermaid" or "dot" text."""
        draw = {"mermaid": drawing.mermaid, "dot": drawing.dot}[form]
        return draw(
            self._stored.definition, {key.name: row.state for key, row in self._stored.rows.items() if key.index is None}
        )

    def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> None:
        """Send a signal; the second of an id is ignored."""
        event = SignalReceived(at=self._now, id=id or str(uuid.uuid4()), name=name, payload=as_stored(payload))
        self.harness.store.give(self.id, event)

    def cancel(self, reason: str = "", *, children: bool = True) -> None:
        self.harness.store.give(self.id, CancelRequested(at=self._now, reason=reason, children=children))

    def retry(self) -> None:
        """Go on from what failed. Raises InvalidTransitionError if the run is not over, or succeeded."""
        self.harness.store.give(self.id, RetryRequested(at=self._now, epoch=self._stored.run.epoch))

    def rerun(self, *, from_step: str | None = None, scope: str = "downstream") -> None:
        """Do a step again: only it ("step"), with what follows ("downstream"), or the whole run ("all")."""
        event = RerunRequested(at=self._now, epoch=self._stored.run.epoch, step=from_step, scope=scope)
        self.harness.store.give(self.id, event)

    @property
    def _stored(self) -> MemoryRun:
        return self.harness.store.get(self.id)

    @property
    def _now(self) -> int:
        return self.harness.store.now


def _which(message: Message) -> dict[str, Any]:
    send = message.send
    return {"name": send.name, "index": send.index, "epoch": send.epoch, "attempt": send.attempt}
