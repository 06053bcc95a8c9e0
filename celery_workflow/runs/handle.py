"""A run, as the app that started it sees it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery.exceptions import TimeoutError
from celery.result import AsyncResult, allow_join_result

from ..engine import drawing
from ..engine.definition import Role
from ..engine.draft import task_id_of
from ..engine.events import CancelRequested, Event, RerunRequested, RetryRequested, SignalReceived
from ..engine.journal import Entry
from ..engine.policies import Error
from ..engine.records import Key, RunRecord, StepRecord
from ..engine.states import RunState, StepState
from ..engine.values import RUN
from ..errors import RunFailedError, WaitTimeoutError
from ..schedules.zones import moment_of
from .runtime import Runtime
from .serializing import as_stored
from .store import StoredRun

__all__ = ["Run", "StepInfo"]

#: Seconds between two looks at a run that nobody wakes us for: from the first to the longest.
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5
#: Seconds after which it is looked at in any case.
LONGEST_WAIT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """A step as users see it. `waits_until` is when a sleep or a timeout ends, or a retry is due."""

    name: str
    status: str
    attempt: int
    epoch: int
    task: str | None
    task_id: str
    result: Any = None
    error: Error | None = None
    changed_at: datetime | None = None
    waits_until: datetime | None = None
    child_id: str | None = None
    #: Of a map: how many items there are, are over, have failed.
    items: int | None = None
    items_done: int = 0
    items_failed: int = 0


class Run:
    """A run by its id. Making one touches nothing; each question asks the database.

    All methods raise RunNotFoundError if there is no such run.
    """

    def __init__(self, runtime: Runtime, run_id: str) -> None:
        self._runtime = runtime
        self.id = run_id

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    # -- looking --------------------------------------------------------------------------

    @property
    def stored(self) -> StoredRun:
        """All that is stored of the run itself."""
        return self._runtime.store.get(self.id)

    @property
    def status(self) -> str:
        """pending, running, stopping, compensating, succeeded, failed, cancelled or discarded."""
        return str(self.stored.record.state)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.stored.labels

    def result(self, timeout: float | timedelta | None = None) -> Any:
        """The result, waited for up to `timeout` seconds, None for as long as it takes.

        Raises RunFailedError if the run has ended without one, WaitTimeoutError if it has not ended in time.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        record = self._ended(None if seconds is None else time.monotonic() + seconds)
        if record is None:
            standing = ", ".join(f"{count} {state}" for state, count in self.progress().items())
            raise WaitTimeoutError(f"run {self.id} is not over after {seconds} seconds: {self.status}, steps: {standing}")
        if record.state is not RunState.SUCCEEDED:
            said = f"{record.error.type}: {record.error.message}" if record.error else record.reason
            step = f" at step {record.failed_step}" if record.failed_step else ""
            raise RunFailedError(f"run {self.id} ended as {record.state}{step}: {said}")
        return self._runtime.store.result(self.id, Key(RUN))

    def async_result(self) -> AsyncResult:
        """Celery's own handle of the run: `AsyncResult(run.id)`."""
        return AsyncResult(self.id, app=self._runtime.app)

    def steps(self) -> dict[str, StepInfo]:
        """All steps by name; handlers and compensations only once they have begun. A map's result is not fetched."""
        stored = self.stored
        rows = {record.name: record for record in self._runtime.store.steps(self.id)}
        shown = [step for step in stored.definition.steps if step.role is Role.MAIN or step.name in rows]
        done = [name for name, record in rows.items() if record.state is StepState.SUCCEEDED and record.total is None]
        results = self._runtime.store.results(self.id, done)
        return {
            step.name: self._info(
                rows.get(step.name) or StepRecord(name=step.name),
                step.call.task if step.call else None,
                results.get(step.name),
            )
            for step in shown
        }

    def step_result(self, name: str, index: int | None = None) -> Any:
        """The result of a step, or of an item of a map; None if there is none (yet)."""
        return self._runtime.store.result(self.id, Key(name, index))

    def progress(self) -> Mapping[str, int]:
        """How many steps are in each state, and `total`; each item of a map counts as one."""
        counts = dict(self._runtime.store.progress(self.id))
        return {**counts, "total": sum(counts.values())}

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The last 20 failures of attempts, also of those that were tried again, oldest first."""
        return [
            {
                "at": moment_of(entry.at),
                "step": entry.name,
                "index": entry.index,
                "attempt": entry.failed_attempt,
                "error": entry.error,
            }
            for entry in self._runtime.store.errors(self.id)
        ]

    def journal(self) -> list[Entry]:
        """All that happened, oldest first; times are microseconds since 1970."""
        return [entry for _, entry in self._runtime.store.journal(self.id)]

    def graph(self, form: str = "mermaid") -> str:
        """The graph with the states of its steps, as "mermaid" or "dot" text. Raises ValueError for another form."""
        draw = {"mermaid": drawing.mermaid, "dot": drawing.dot}.get(form)
        if draw is None:
            raise ValueError(f"form is {form!r}, but must be mermaid or dot")
        states = {record.name: record.state for record in self._runtime.store.steps(self.id)}
        return draw(self.stored.definition, states)

    def children(self) -> Sequence[Run]:
        """The runs that steps of this one have started."""
        return [Run(self._runtime, child) for child in self._runtime.store.children(self.id)]

    # -- acting ---------------------------------------------------------------------------

    def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> bool:
        """Send a signal to the run: to who waits for it, or kept until somebody does. False if one of that `id` came before.

        Takes part in the caller's transaction inside of `in_transaction`. Raises TypeError or ValueError for a payload
        that does not fit into JSON.
        """
        signal_id, stored = id or str(uuid.uuid4()), as_stored(payload)
        decision = self._runtime.tell(self.id, lambda now: SignalReceived(at=now, id=signal_id, name=name, payload=stored))
        return not decision.ignored

    def cancel(self, reason: str = "", *, children: bool = True) -> bool:
        """Begin nothing more, stop what runs, undo what is to be undone. False if the run is over.

        Tasks that run are revoked and, where the pool can, terminated. With `children` the runs that steps wait for are
        cancelled, too; otherwise they go on alone.
        """
        event = lambda now: CancelRequested(at=now, reason=str(reason or ""), children=children)
        return not self._runtime.tell(self.id, event).ignored

    def retry(self) -> None:
        """Go on from what failed; what succeeded is kept. Raises InvalidTransitionError if the run is not over, or succeeded."""
        epoch = self.stored.record.epoch
        self._reopen(lambda now: RetryRequested(at=now, epoch=epoch))

    def rerun(self, *, from_step: str | None = None, scope: str | None = None) -> None:
        """Do a step again: only it ("step"), with what follows it ("downstream"), or the whole run ("all").

        Without a step the scope is "all". Raises InvalidTransitionError if the run is not over, or there is no such step.
        """
        chosen = scope or ("all" if from_step is None else "downstream")
        epoch = self.stored.record.epoch
        self._reopen(lambda now: RerunRequested(at=now, epoch=epoch, step=from_step, scope=chosen))

    # -- small things ---------------------------------------------------------------------

    def _ended(self, until: float | None) -> RunRecord | None:
        """The run once it is over, None if it is not in time."""
        pause = FIRST_PAUSE
        while not (record := self.stored.record).state.is_over:
            left = LONGEST_WAIT if until is None else min(LONGEST_WAIT, until - time.monotonic())
            if left <= 0:
                return None
            if self._runtime.backend_is_here and not self.async_result().ready():
                # Its result is stored with its end, and who waits for that is woken.
                with suppress(TimeoutError), allow_join_result():
                    self.async_result().get(timeout=left, propagate=False)
            else:
                time.sleep(min(pause, left))
                pause = min(LONGEST_PAUSE, pause * 1.5)
        return record

    def _reopen(self, event: Callable[[int], Event]) -> None:
        # What it said when it was over is not true any more.
        self._runtime.give(self.id, lambda now, _: event(now), record=lambda _: self._runtime.forget_result(self.id))

    def _info(self, record: StepRecord, task: str | None, result: Any) -> StepInfo:
        return StepInfo(
            name=record.name,
            status=str(record.state),
            attempt=record.attempt,
            epoch=record.epoch,
            task=task,
            task_id=task_id_of(self.id, record.key, record.epoch),
            result=result,
            error=record.error,
            changed_at=moment_of(record.changed_at) if record.changed_at else None,
            waits_until=None if record.due_at is None else moment_of(record.due_at),
            child_id=record.child_id,
            items=record.total,
            items_done=record.done,
            items_failed=record.failed_items,
        )
