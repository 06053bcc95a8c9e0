"""What became of an attempt."""

from __future__ import annotations

from dataclasses import replace

from . import finishing, starting
from .definition import Role
from .draft import Draft
from .events import (
    ChildFinished,
    Outcome,
    StepFailed,
    StepRetried,
    StepSnoozed,
    StepStarted,
    StepSucceeded,
    StepWithdrawn,
)
from .policies import MICRO, Error
from .records import StepRecord
from .states import IN_FLIGHT, RunState, StepState

__all__ = ["child_finished", "failed", "retried", "snoozed", "started", "succeeded", "withdrawn"]

_STALE = "another attempt is current, or the step is over"


def started(draft: Draft, event: StepStarted) -> str | None:
    if (record := _current(draft, event)) is None:
        return _STALE
    draft.put(replace(record, state=StepState.RUNNING), "started")
    return None


def succeeded(draft: Draft, event: StepSucceeded) -> str | None:
    if (record := _current(draft, event)) is None:
        return _STALE
    if event.expansion is not None:
        _expand(draft, record, event)
    else:
        draft.set_result(record.key, event.result)
        finishing.finish(draft, record, StepState.SUCCEEDED, "succeeded")
    return None


def failed(draft: Draft, event: StepFailed) -> str | None:
    """Try again if the policy has another attempt; a run that stops has none."""
    if (record := _current(draft, event)) is None:
        return _STALE
    step = draft.declared(record)
    record = replace(record, failures=record.failures + 1, error=event.error)
    again_at = None if _stops(draft, record) else _again_at(draft, record, event.error)
    if again_at is None:
        finishing.fail(draft, record, event.error, step.on_exhausted, "failed")
    else:
        starting.send(draft, replace(record, retries=0), "retry", due_at=again_at, error=event.error)
    return None


def retried(draft: Draft, event: StepRetried) -> str | None:
    """The task's own retry: Celery has judged it already."""
    if (record := _current(draft, event)) is None:
        return _STALE
    if _stops(draft, record):
        finishing.finish(draft, record, StepState.CANCELLED, "retry")
        return None
    record = replace(record, retries=event.retries)
    call = starting.call_of(draft, record)
    args = call.args if event.args is None else event.args
    kwargs = call.kwargs if event.kwargs is None else event.kwargs
    call = replace(call, args=args, kwargs=kwargs)
    starting.send(draft, record, "retry", due_at=event.due_at, call=call, error=event.error)
    return None


def snoozed(draft: Draft, event: StepSnoozed) -> str | None:
    if (record := _current(draft, event)) is None:
        return _STALE
    if _stops(draft, record):
        finishing.finish(draft, record, StepState.CANCELLED, "snooze")
    else:
        starting.send(draft, record, "snooze", due_at=event.due_at)
    return None


def withdrawn(draft: Draft, event: StepWithdrawn) -> str | None:
    if (record := _current(draft, event)) is None:
        return _STALE
    finishing.finish(draft, record, StepState.CANCELLED, "withdrawn")
    return None


def child_finished(draft: Draft, event: ChildFinished) -> str | None:
    record = draft.step(event.name, event.index)
    # The child may have been opened again by others, too: any end since then is the one.
    is_expected = (record.state, record.child_id) == (StepState.EXPANDED, event.child_id)
    if not is_expected or event.child_epoch < record.child_epoch:
        return "the step does not wait for this end"
    if event.state is RunState.SUCCEEDED:
        draft.set_result(record.key, event.result)
        finishing.finish(draft, record, StepState.SUCCEEDED, "child")
    elif event.state is RunState.CANCELLED and draft.run.state is RunState.STOPPING:
        finishing.finish(draft, record, StepState.CANCELLED, "child")
    else:
        error = event.error or Error(type="ChildRunFailed", message=f"run {event.child_id} ended as {event.state}")
        finishing.fail(draft, record, error, draft.declared(record).on_exhausted, "child")
    return None


def _current(draft: Draft, event: Outcome) -> StepRecord | None:
    if event.name not in draft.definition.by_name:
        return None
    record = draft.step(event.name, event.index)
    is_current = record.state in IN_FLIGHT and (record.epoch, record.attempt) == (event.epoch, event.attempt)
    return record if is_current else None


def _stops(draft: Draft, record: StepRecord) -> bool:
    """Whether nothing more of it may begin: its run stops, or its map does."""
    if draft.declared(record).role is not Role.MAIN:
        return False
    return draft.run.state is not RunState.RUNNING or (record.index is not None and draft.step(record.name).stopped)


def _again_at(draft: Draft, record: StepRecord, error: Error) -> int | None:
    policy = draft.declared(record).retry
    if not policy.allows(error, record.failures):
        return None
    seed = f"{draft.run.id}:{record.name}:{record.index}:{record.epoch}:{record.failures}"
    again_at = draft.at + policy.delay_after(record.failures, seed=seed)
    first = draft.at if record.first_due_at is None else record.first_due_at
    return None if policy.until is not None and again_at > first + policy.until * MICRO else again_at


def _expand(draft: Draft, record: StepRecord, event: StepSucceeded) -> None:
    if _stops(draft, record):
        finishing.finish(draft, record, StepState.CANCELLED, "expanded")
        return
    child_id = draft.start_child(record, event.expansion)
    draft.put(replace(record, state=StepState.EXPANDED, child_id=child_id, child_epoch=1, due_at=None), "expanded")
