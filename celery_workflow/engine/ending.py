"""The end of a run: undo what is to be undone, newest first, then tell those who want to know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import ValueMissingError
from . import starting
from .definition import Role, Step
from .draft import Draft
from .events import ChildFinished
from .policies import Error
from .records import Key, StepRecord
from .states import IN_FLIGHT, RunState, StepState
from .values import RUN

__all__ = ["conclude", "tell_parent_again", "undo_next"]

_TOLD = {
    RunState.SUCCEEDED: Role.ON_SUCCESS,
    RunState.FAILED: Role.ON_FAILURE,
    RunState.CANCELLED: Role.ON_CANCEL,
}


def conclude(draft: Draft) -> None:
    """Every main step is over."""
    run = draft.run
    if run.ending is None and not run.bad:
        try:
            _finish(draft, RunState.SUCCEEDED, draft.resolve(draft.definition.result))
            return
        except (ValueMissingError, TypeError) as error:
            run = replace(run, error=Error(type=type(error).__name__, message=str(error)))
    draft.put_run(replace(run, state=RunState.COMPENSATING, ending=run.ending or RunState.FAILED), "compensate")
    undo_next(draft)


def undo_next(draft: Draft) -> None:
    """Begin the next compensation, when the one before is over; without any, the run has ended."""
    undo = draft.definition.compensations
    done = [record for record in draft.mains(undo) if record.state is StepState.SUCCEEDED]
    for record in sorted(done, key=lambda record: -(record.order or 0)):
        compensation = draft.step(undo[record.name])
        if compensation.state is StepState.PENDING:
            starting.begin(draft, compensation)
        if not draft.step(compensation.name).state.is_over:
            return
    _finish(draft, draft.run.ending or RunState.FAILED, None)


def tell_parent_again(draft: Draft, *, epoch: int) -> None:
    """The run is over; its parent waits for the end of this epoch, which there was by another's wish, or never is."""
    _tell_parent(draft, draft.view.results([RUN])[RUN], epoch=epoch)


def _finish(draft: Draft, state: RunState, result: Any) -> None:
    draft.put_run(replace(draft.run, state=state, ending=state, finished_at=draft.at), "end")
    draft.set_result(Key(RUN), result)
    draft.end(result)
    _tell_parent(draft, result, epoch=draft.run.epoch)
    for step in draft.definition.steps:
        if step.role is _TOLD.get(state) and _concerns(draft, step):
            _tell(draft, step)


def _tell_parent(draft: Draft, result: Any, *, epoch: int) -> None:
    run = draft.run
    if run.parent is not None:
        event = ChildFinished(
            at=draft.at,
            name=run.parent.name,
            index=run.parent.index,
            child_id=run.id,
            child_epoch=epoch,
            state=run.state,
            result=result,
            error=run.error,
        )
        draft.post(run.parent.run_id, event)


def _concerns(draft: Draft, step: Step) -> bool:
    return not step.of or any(record.state is StepState.FAILED for record in draft.mains(step.of))


def _tell(draft: Draft, step: Step) -> None:
    told = draft.step(step.name)
    fresh = StepRecord(name=step.name, epoch=draft.run.epoch)
    # It may have been told in an epoch before, and may even be busy with that.
    if told.state.is_over:
        told = draft.put(fresh, "again")
    if told.state in IN_FLIGHT:
        starting.send(draft, replace(fresh, attempt=told.attempt), "again")
    elif told.state is StepState.PENDING:
        starting.begin(draft, told)
