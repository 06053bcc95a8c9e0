"""What became of a step's task, given to its run: from the process that ran it, or from its worker if that died."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from celery import states
from celery.exceptions import WorkerLostError
from kombu.exceptions import EncodeError, OperationalError

from kombu_sqlqueue.errors import SQLQueueError
from kombu_sqlqueue.messages import Lease
from kombu_sqlqueue.patience import OUTCOME_PATIENCE, patiently

from ..building.canvas import expansion_of
from ..engine.decision import Decision
from ..engine.events import Event, StepFailed, StepRetried, StepSnoozed, StepSucceeded, StepWithdrawn
from ..engine.failures import error_of
from ..engine.policies import MICRO, Error
from ..engine.records import Key, RunView
from ..engine.states import RunState
from ..errors import DefinitionError, RunNotFoundError, Snooze, WorkflowError
from .identity import StepIdentity
from .runtime import Runtime
from .serializing import as_stored

__all__ = ["Outcomes"]

logger = logging.getLogger(__name__)

#: Stores what Celery's result backend shall say of the task.
Record = Callable[[], object]
#: For how many seconds a worker that is not the task's own process tries to write an outcome: others wait for it.
PATIENCE = 30.0


class Outcomes:
    """The outcomes of one app's steps. `record` is called if the step is over, with the outcome or after it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def succeeded(self, step: StepIdentity, request: Any, result: Any, record: Record) -> None:
        """Raises EncodeError for a result that cannot be stored: Celery makes a failure of it."""
        if step.expands:
            self.expanded(step, request, result)
            return
        try:
            stored = as_stored(result)
        except (TypeError, ValueError) as error:
            raise EncodeError(f"the result of step {step.step!r} does not fit into JSON: {error}") from error
        self._give(step, request, lambda now, _: StepSucceeded(at=now, **step.which, result=stored), record)

    def completed(self, step: StepIdentity, request: Any, result: Any) -> None:
        """The step says itself that it is done, in a transaction of its own.

        Raises TypeError or ValueError for the result, WorkflowError if this outcome does not count: then nothing else
        of that transaction may.
        """
        stored = as_stored(result)
        happening = lambda now, _: StepSucceeded(at=now, **step.which, result=stored)

        def record(_: Decision) -> None:
            self.runtime.app.backend.store_result(request.id, result, states.SUCCESS, request=request)

        lease = self._lease(request)
        written = self.runtime.give(step.run, happening, lease=lease, record=None if request.ignore_result else record)
        if written.lost or written.decision.ignored:
            raise WorkflowError(f"step {step.step} of run {step.run} cannot be completed: {written.decision.ignored}")

    def expanded(self, step: StepIdentity, request: Any, canvas: Any) -> None:
        """The task returned, or put in its place, what is to be run instead of it."""
        try:
            expansion = expansion_of(canvas, name=step.step, app=self.runtime.app)
        except DefinitionError as error:
            refused = error_of(error)
            self._give(step, request, lambda now, _: StepFailed(at=now, **step.which, error=refused))
            return
        self._give(step, request, lambda now, _: StepSucceeded(at=now, **step.which, expansion=expansion))

    def failed(self, step: StepIdentity, request: Any, exception: BaseException, traceback: Any, record: Record) -> None:
        lease = self._lease(request)
        if isinstance(exception, WorkerLostError) and lease is not None and self.runtime.messages.is_alive(lease):
            # Its message is put back, and another process has a try.
            return
        if isinstance(exception, Snooze):
            snoozed_for = round(exception.seconds * MICRO)
            self._give(step, request, lambda now, _: StepSnoozed(at=now, **step.which, due_at=now + snoozed_for))
            return
        error = error_of(exception, str(traceback or ""))
        self._give(step, request, lambda now, _: StepFailed(at=now, **step.which, error=error), record)

    def revoked(self, step: StepIdentity, request: Any, reason: str, record: Record) -> None:
        def event(now: int, view: RunView) -> Event:
            if view.run.state is RunState.RUNNING and not _is_stopped(view, step):
                error = Error(type="TaskRevokedError", message=str(reason or "revoked"), permanent=True)
                return StepFailed(at=now, **step.which, error=error)
            return StepWithdrawn(at=now, **step.which)

        self._give(step, request, event, record)

    def retried(
        self, step: StepIdentity, request: Any, *, seconds: float, retries: int, args: Any, kwargs: Any, error: Error | None
    ) -> None:
        """The task's own retry, in so many seconds."""
        given = {"args": tuple(as_stored(list(args))), "kwargs": as_stored(dict(kwargs)), "retries": retries, "error": error}
        wait_for = round(seconds * MICRO)
        self._give(step, request, lambda now, _: StepRetried(at=now, **step.which, due_at=now + wait_for, **given))

    def ignored(self, step: StepIdentity, request: Any) -> None:
        """The task raised `Ignore`: it counts as done, without a result."""
        self._give(step, request, lambda now, _: StepSucceeded(at=now, **step.which))

    def _give(
        self,
        step: StepIdentity,
        request: Any,
        happening: Callable[[int, RunView], Event],
        record: Record | None = None,
        *,
        last_resort: bool = False,
    ) -> None:
        def told(decision: Decision) -> None:
            # What nobody has decided is not over: there will be another attempt.
            sent_again = any((send.name, send.index) == (step.step, step.index) for send in decision.sends)
            if record is not None and not sent_again:
                record()

        lease = self._lease(request)
        request.workflow_outcome = True
        try:
            written = patiently(
                lambda: self.runtime.give(step.run, happening, lease=lease, record=told), seconds=self._patience()
            )
        except RunNotFoundError:
            logger.warning("step %s of run %s has ended, but the run is gone", step.step, step.run)
            if lease is not None:
                self.runtime.messages.settle(lease)
            return
        except (EncodeError, OperationalError, SQLQueueError):
            raise
        except Exception as error:
            # Whatever it is, it would be met again by each worker that runs the step: rather fail it than stand still.
            if last_resort:
                raise
            logger.exception("the outcome of step %s of run %s cannot be written: it has failed", step.step, step.run)
            refused = replace(error_of(error), permanent=True)
            self._give(step, request, lambda now, _: StepFailed(at=now, **step.which, error=refused), last_resort=True)
            return
        if written.lost:
            logger.warning(
                "the outcome of step %s of run %s does not count: its lease was lost, and another worker has it",
                *(step.step, step.run),
            )
        elif written.decision.ignored:
            logger.info("step %s of run %s: %s", step.step, step.run, written.decision.ignored)

    def _patience(self) -> float:
        task = self.runtime.app.current_worker_task
        return OUTCOME_PATIENCE if task is not None and not task.request.called_directly else PATIENCE

    def _lease(self, request: Any) -> Lease | None:
        if not self.runtime.home.is_broker:
            return None
        return Lease.parse((getattr(request, "properties", None) or {}).get("delivery_tag"))


def _is_stopped(view: RunView, step: StepIdentity) -> bool:
    record = view.steps([Key(step.step)]).get(Key(step.step))
    return record is not None and record.stopped
