"""The end of a step or an item: counted, and passed on to who waits for it."""

from __future__ import annotations

from dataclasses import replace

from . import maps, stopping
from .definition import Role
from .draft import Draft
from .policies import Error, Otherwise
from .records import StepRecord
from .states import RunState, StepState

__all__ = ["fail", "finish"]


def fail(draft: Draft, record: StepRecord, error: Error, otherwise: Otherwise, why: str) -> None:
    """The step, or item, has failed for good; it is as bad as its declaration says."""
    record = replace(record, error=error)
    if record.index is None and otherwise in (Otherwise.SKIP, Otherwise.SKIP_CASCADE):
        cascade = otherwise is Otherwise.SKIP_CASCADE
        finish(draft, replace(record, cascade=cascade), StepState.SKIPPED, why, error=error)
        return
    finish(draft, record, StepState.FAILED, why, error=error)
    if record.index is None and draft.declared(record).role is Role.MAIN:
        _main_failed(draft, record, error, otherwise)


def finish(draft: Draft, record: StepRecord, state: StepState, why: str, *, error: Error | None = None) -> None:
    """The step, or item, is over."""
    if record.index is not None:
        over = draft.put(replace(record, state=state, due_at=None), why, error=error)
        maps.item_over(draft, over, error)
        return
    role = draft.declared(record).role
    order = draft.run.completions + 1 if state is StepState.SUCCEEDED else None
    over = draft.put(replace(record, state=state, order=order, due_at=None), why, error=error)
    if role is Role.MAIN:
        _count(draft, over)
        draft.finished.append(over)
    elif role is Role.COMPENSATION:
        draft.undone = True


def _count(draft: Draft, over: StepRecord) -> None:
    run = draft.run
    draft.put_run(
        replace(
            run,
            unfinished=run.unfinished - 1,
            bad=run.bad + over.state.is_bad,
            completions=over.order or run.completions,
        )
    )


def _main_failed(draft: Draft, record: StepRecord, error: Error, otherwise: Otherwise) -> None:
    if draft.run.failed_step is None and draft.run.ending is not RunState.CANCELLED:
        draft.put_run(replace(draft.run, failed_step=record.name, error=error))
    if otherwise is Otherwise.DISCARD:
        stopping.stop(draft, RunState.DISCARDED, f"step {record.name} discarded")
    elif draft.definition.fail_fast:
        stopping.stop(draft, RunState.FAILED, f"step {record.name} failed")
