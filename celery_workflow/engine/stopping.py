"""Letting a run come to an end before its time: a failure, a cancel, the deadline."""

from __future__ import annotations

from dataclasses import replace

from . import finishing, maps
from .draft import Draft
from .events import CancelRequested, DeadlinePassed
from .policies import Error
from .records import StepRecord
from .states import IN_FLIGHT, RunState, StepState

__all__ = ["cancel", "deadline_passed", "halt_child", "stop"]


def stop(draft: Draft, ending: RunState, reason: str, *, terminate: bool = False, children: bool = True) -> None:
    """Begin nothing new, take back what has not begun; the run ends when the rest has ended."""
    run = draft.run
    if run.state not in (RunState.PENDING, RunState.RUNNING):
        return
    draft.put_run(replace(run, state=RunState.STOPPING, ending=ending, reason=reason), "stop")
    if run.state is RunState.RUNNING:
        for record in draft.mains():
            _halt(draft, draft.step(record.name), terminate=terminate, children=children)


def cancel(draft: Draft, event: CancelRequested) -> str | None:
    """A run that is stopping already ends as it would have, only sooner."""
    if draft.run.state is RunState.STOPPING:
        for record in draft.mains():
            _halt(draft, record, terminate=True, children=event.children)
        return None
    if draft.run.state not in (RunState.PENDING, RunState.RUNNING):
        return "the run is over"
    stop(draft, RunState.CANCELLED, event.reason, terminate=True, children=event.children)
    return None


def deadline_passed(draft: Draft, event: DeadlinePassed) -> str | None:
    run = draft.run
    if run.state not in (RunState.PENDING, RunState.RUNNING) or run.deadline_at != event.due_at:
        return "the run is over, or has another deadline"
    error = Error(type="DeadlinePassed", message=f"the run took longer than {draft.definition.timeout} seconds")
    draft.put_run(replace(run, error=error))
    stop(draft, RunState.FAILED, "deadline", terminate=True)
    return None


def halt_child(draft: Draft, record: StepRecord, *, children: bool) -> None:
    """Stop the run that a step or item waits for, or wait no longer for it."""
    if children and record.child_id:
        draft.post(record.child_id, CancelRequested(at=draft.at, reason=f"run {draft.run.id} stops"))
    else:
        finishing.finish(draft, replace(record, child_id=None), StepState.CANCELLED, "alone")


def _halt(draft: Draft, record: StepRecord, *, terminate: bool, children: bool) -> None:
    if record.state in IN_FLIGHT:
        draft.withdraw(record.name, terminate=terminate)
    elif record.state is StepState.MAPPING:
        maps.halt(draft, record, terminate=terminate, children=children)
    elif record.state is StepState.EXPANDED:
        halt_child(draft, record, children=children)
    elif not record.state.is_over:
        finishing.finish(draft, record, StepState.CANCELLED, "stop")
