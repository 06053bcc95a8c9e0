"""The beginning of runs and steps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ..errors import ValueMissingError
from . import finishing, maps, rerunning, waiting
from .definition import Call, Gather, Map, Sleep, Step, Task, Wait
from .draft import Draft
from .events import RerunRequested, RetryRequested, RunAdmitted
from .policies import MICRO, Error, Otherwise
from .records import StepRecord
from .states import RunState, StepState

__all__ = ["admit", "begin", "begin_ready", "call_of", "send"]


def admit(draft: Draft, event: RunAdmitted) -> str | None:
    """Start the run, and each step that needs no other; or do again what was asked for meanwhile."""
    if draft.run.state is not RunState.PENDING:
        return "the run has started"
    if isinstance(draft.run.request, RetryRequested | RerunRequested):
        rerunning.carry_out(draft, draft.run.request)
        return None
    main = draft.definition.main
    draft.put_run(replace(draft.run, state=RunState.RUNNING, started_at=draft.at, unfinished=len(main)), "start")
    begin_ready(draft, [step.name for step in main if not step.needs])
    return None


def begin_ready(draft: Draft, names: list[str]) -> None:
    """Begin each of these steps, unless one before it has stopped the run."""
    for record in draft.mains(names):
        if draft.run.state is RunState.RUNNING and draft.step(record.name).state is StepState.PENDING:
            begin(draft, record)


def begin(draft: Draft, record: StepRecord) -> None:
    """It is the step's turn: all it needs is over."""
    step = draft.declared(record)
    if record.upstream_failed:
        finishing.finish(draft, record, StepState.UPSTREAM_FAILED, "upstream")
        return
    if record.cascade:
        finishing.finish(draft, record, StepState.SKIPPED, "cascade")
        return
    try:
        if draft.resolve(step.when):
            _act(draft, record, step)
        else:
            _unmet(draft, record, step)
    except (ValueMissingError, TypeError, ValueError, ArithmeticError) as error:
        told = Error(type=type(error).__name__, message=str(error), permanent=True)
        finishing.fail(draft, record, told, step.on_exhausted, "arguments")


def send(
    draft: Draft,
    record: StepRecord,
    why: str,
    *,
    due_at: int | None = None,
    call: Call | None = None,
    error: Error | None = None,
) -> StepRecord:
    """Another attempt of a step or item leaves, with its arguments as they are now."""
    call = call or call_of(draft, record)
    due_at = _due(draft, call) if due_at is None and not record.attempt else due_at
    sent = replace(
        record,
        state=StepState.SENT,
        attempt=record.attempt + 1,
        due_at=due_at,
        first_due_at=(due_at or draft.at) if record.first_due_at is None else record.first_due_at,
    )
    draft.send(sent, call, due_at=due_at)
    return draft.put(sent, why, error=error)


def call_of(draft: Draft, record: StepRecord) -> Call:
    """The task of a step or item, with values for references."""
    step = draft.declared(record)
    assert step.call is not None
    args, kwargs = draft.resolve([list(step.call.args), step.call.kwargs], told=step)
    if record.index is not None:
        assert isinstance(step.action, Map)
        args = [*(record.value if step.action.star else [record.value]), *args]
    return replace(step.call, args=tuple(args), kwargs=kwargs)


def _act(draft: Draft, record: StepRecord, step: Step) -> None:
    match step.action:
        case Task():
            send(draft, record, "ready")
        case Map():
            maps.begin(draft, record, step.action)
        case Sleep(seconds=seconds, until=until):
            waiting.sleep(draft, record, _wake_at(draft, draft.resolve(seconds), draft.resolve(until)))
        case Wait():
            waiting.wait(draft, record, step.action)
        case Gather(value=value):
            draft.set_result(record.key, draft.resolve(value))
            finishing.finish(draft, record, StepState.SUCCEEDED, "gathered")


def _unmet(draft: Draft, record: StepRecord, step: Step) -> None:
    if step.on_unmet is Otherwise.FAIL:
        error = Error(type="ConditionNotMet", message="its condition is not met", permanent=True)
        finishing.fail(draft, record, error, Otherwise.FAIL, "unmet")
    else:
        cascade = step.on_unmet is Otherwise.SKIP_CASCADE
        finishing.finish(draft, replace(record, cascade=cascade), StepState.SKIPPED, "unmet")


def _due(draft: Draft, call: Call) -> int | None:
    if call.eta is not None:
        return call.eta
    return None if call.countdown is None else draft.after(call.countdown)


def _wake_at(draft: Draft, seconds: Any, until: Any) -> int:
    if until is None:
        return draft.after(float(seconds))
    # A step's result may be a datetime, too: JSON as Celery writes it knows them.
    moment = until if isinstance(until, datetime) else datetime.fromisoformat(until)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * MICRO)
