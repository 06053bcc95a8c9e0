"""Where we listen to Celery: the result backend, which every outcome passes; `retry` and `replace`; what is sent."""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from typing import Any, cast

from celery import Celery, current_task, signals, states
from celery.app.task import Task
from celery.exceptions import Ignore
from celery.utils.serialization import UnpickleableExceptionWrapper

from ..engine.failures import error_of
from ..errors import Permanent, Snooze
from .advancing import AdvancerStep
from .identity import StepIdentity, identity_of
from .outcomes import Outcomes
from .runtime import runtime_of

__all__ = ["install"]

#: The attribute of an app that takes part.
ATTRIBUTE = "workflow_outcomes"

#: Set while the running step retries, until it is sent: the exception for which, in a tuple.
_retrying: ContextVar[tuple[BaseException | None] | None] = ContextVar("retrying", default=None)


def install(app: Celery) -> Outcomes:
    """Let the app take part in workflows. Touches nothing; safe to call again."""
    outcomes: Outcomes | None = getattr(app, ATTRIBUTE, None)
    if outcomes is None:
        outcomes = Outcomes(runtime_of(app))
        setattr(app, ATTRIBUTE, outcomes)
        app.steps["worker"].add(AdvancerStep)
        _listen_to_results(app)
        _listen_to_retries(app)
        _listen_to_tasks()
    return outcomes


class Participating:
    """Comes before the class of a result backend: a step's outcome is its run's matter, with the result in it."""

    app: Celery
    #: The class of the backend as it was.
    plain: type

    def __reduce__(self, *args: Any, **kwargs: Any) -> Any:
        # A result that is pickled has its backend in it, and this class is none that can be imported.
        reduced: Any = super().__reduce__(*args, **kwargs)
        unpickle, given = reduced
        return unpickle, (self.plain, *given[1:])

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, state: str = states.SUCCESS
    ) -> None:
        plain = functools.partial(
            super().mark_as_done,  # type: ignore[misc]
            *(task_id, result),
            request=request,
            store_result=store_result,
            state=state,
        )
        step = _step(task_id, request)
        if step is None:
            plain()
        else:
            install(self.app).succeeded(step, request, result, plain)

    def mark_as_failure(
        self,
        task_id: str,
        exc: BaseException,
        traceback: Any = None,
        request: Any = None,
        store_result: bool = True,
        call_errbacks: bool = True,
        state: str = states.FAILURE,
    ) -> None:
        plain = functools.partial(
            super().mark_as_failure,  # type: ignore[misc]
            *(task_id, exc),
            traceback=traceback,
            request=request,
            store_result=store_result,
            call_errbacks=call_errbacks,
            state=state,
        )
        step = _step(task_id, request)
        if step is None:
            plain()
        else:
            install(self.app).failed(step, request, _raised(exc), traceback, plain)

    def mark_as_revoked(
        self, task_id: str, reason: str = "", request: Any = None, store_result: bool = True, state: str = states.REVOKED
    ) -> None:
        plain = functools.partial(
            super().mark_as_revoked,  # type: ignore[misc]
            *(task_id, reason),
            request=request,
            store_result=store_result,
            state=state,
        )
        step = _step(task_id, request)
        if step is None:
            plain()
        else:
            install(self.app).revoked(step, request, reason, plain)

    def mark_as_retry(
        self,
        task_id: str,
        exc: BaseException,
        traceback: Any = None,
        request: Any = None,
        store_result: bool = True,
        state: str = states.RETRY,
    ) -> Any:
        # A step has been sent again already, and that one may have ended by now.
        if _step(task_id, request) is not None:
            return None
        return super().mark_as_retry(  # type: ignore[misc]
            task_id, exc, traceback=traceback, request=request, store_result=store_result, state=state
        )


@functools.cache
def _participating(backend: Any) -> type:
    return type(backend.__name__, (Participating, backend), {"__module__": backend.__module__, "plain": backend})


def _listen_to_results(app: Celery) -> None:
    make = app._get_backend

    def _get_backend() -> Any:
        return _joined(make())

    app._get_backend = _get_backend
    for made in (app._backend_cache, getattr(app._local, "backend", None)):
        if made is not None:
            _joined(made)


def _joined(backend: Any) -> Any:
    if not isinstance(backend, Participating):
        backend.__class__ = _participating(cast("Hashable", type(backend)))
    return backend


def _listen_to_retries(app: Celery) -> None:
    send_task = app.send_task

    def send_or_retry(name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        why, request = _retrying.get(), _current_request()
        step = identity_of(request)
        if why is None or step is None or options.get("task_id") != request.id:
            return send_task(name, args, kwargs, *rest, **options)
        [exception] = why
        # What follows sends the step again, which is not to be taken for this.
        _retrying.set(None)
        install(app).retried(
            step,
            request,
            seconds=_seconds(options, rest, app.timezone),
            retries=options["retries"],
            args=args or (),
            kwargs=kwargs or {},
            error=None if exception is None else error_of(exception),
        )
        return app.AsyncResult(options["task_id"])

    # So that a bulk may copy what others send by it.
    send_or_retry.alters_no_message = True  # type: ignore[attr-defined]
    app.send_task = send_or_retry


def _listen_to_tasks() -> None:
    """What has to be done once for all apps."""
    if getattr(Task.retry, "listens", False):
        return
    retry, replace = Task.retry, Task.replace

    @functools.wraps(retry)
    def retry_step(self: Any, *args: Any, **given: Any) -> Any:
        exception = given.get("exc") or (args[2] if len(args) > 2 else None) or sys.exc_info()[1]
        if identity_of(self.request) is None:
            return retry(self, *args, **given)
        if isinstance(exception, Snooze | Permanent):
            # `autoretry_for` would take them for an error like others.
            raise exception
        token = _retrying.set((exception,))
        try:
            return retry(self, *args, **given)
        finally:
            _retrying.reset(token)

    @functools.wraps(replace)
    def replace_step(self: Any, sig: Any) -> Any:
        step = _step(self.request.id, self.request)
        if step is None or self.request.is_eager:
            return replace(self, sig)
        install(self.app).expanded(step, self.request, sig)
        raise Ignore("replaced by a canvas")

    retry_step.listens = True  # type: ignore[attr-defined]
    Task.retry, Task.replace = retry_step, replace_step
    signals.task_postrun.connect(_end_untold, weak=False, dispatch_uid="celery_workflow")


def _end_untold(sender: Any, task_id: str, state: str | None = None, retval: Any = None, **_: Any) -> None:
    """A task that raises `Ignore` or `Reject` tells no result backend of it; one that is put back has not ended."""
    request = sender.request
    step = _step(task_id, request) if state in (states.IGNORED, states.REJECTED) else None
    if step is None or getattr(request, "workflow_outcome", False):
        return
    if state == states.IGNORED:
        install(sender.app).ignored(step, request)
    elif not retval.requeue:
        store_result = not request.ignore_result or sender.store_errors_even_if_ignored
        sender.backend.mark_as_failure(task_id, retval, request=request, store_result=store_result)


def _step(task_id: str, request: Any) -> StepIdentity | None:
    step = identity_of(request)
    return step if step is not None and getattr(request, "id", None) == task_id else None


def _raised(exception: BaseException) -> BaseException:
    """What the task has raised, where Celery puts something else in its place because that cannot be pickled."""
    raised = sys.exc_info()[1]
    if isinstance(exception, UnpickleableExceptionWrapper) or isinstance(raised, type(exception)):
        return raised or exception
    return exception


def _current_request() -> Any:
    return current_task.request if current_task else None


def _seconds(options: dict[str, Any], rest: tuple[Any, ...], zone: tzinfo) -> float:
    """In how many seconds the task is to run again; a moment that names no zone is in the app's, as for Celery."""
    countdown, eta = options.get("countdown"), options.get("eta")
    countdown = rest[0] if rest else countdown
    if eta is None:
        return max(0.0, float(countdown or 0))
    moment = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
