"""Opening a run again: from what failed, or from a step of one's choice. A new epoch fences off the old."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..errors import InvalidTransitionError
from . import ending, maps, starting
from .definition import Map
from .draft import Draft
from .events import RerunRequested, RetryRequested
from .policies import MICRO
from .records import Key, StepRecord
from .states import RunState, StepState

__all__ = ["carry_out", "reopen"]

_KEPT = frozenset({StepState.SUCCEEDED, StepState.SKIPPED})


def reopen(draft: Draft, event: RetryRequested | RerunRequested) -> str | None:
    """Open a run that is over, now or when its turn comes. Raises InvalidTransitionError if there is nothing to do."""
    if isinstance(event, RetryRequested) and event.asked_by_parent and _is_done(draft, event):
        ending.tell_parent_again(draft, epoch=event.epoch + 1)
        return None
    if event.epoch != draft.run.epoch or draft.run.request is not None:
        return "it has been asked before"
    if not draft.run.state.is_over:
        raise InvalidTransitionError(f"run {draft.run.id} is {draft.run.state}: only what is over can be done again")
    again = _again(draft, event)
    if event.wait:
        request = replace(event, wait=False)
        draft.put_run(replace(draft.run, state=RunState.PENDING, ending=None, request=request), "queue")
    else:
        _reopen(draft, again, event)
    return None


def carry_out(draft: Draft, event: RetryRequested | RerunRequested) -> None:
    """Do what was asked when the run had to wait for its turn."""
    _reopen(draft, _again(draft, event), event)


def _is_done(draft: Draft, event: RetryRequested) -> bool:
    """Whether the run is over, for good or since somebody else has asked."""
    return draft.run.state.is_over and (event.epoch != draft.run.epoch or not _bad(draft))


def _bad(draft: Draft) -> set[str]:
    """The steps that have not succeeded, or that a compensation has undone."""
    undone = {of for of, name in draft.definition.compensations.items() if draft.step(name).state.is_over}
    return {record.name for record in draft.mains() if record.state not in _KEPT or record.name in undone}


def _again(draft: Draft, event: RetryRequested | RerunRequested) -> set[str]:
    """The steps to do again."""
    if isinstance(event, RerunRequested):
        return _scope(draft, event)
    again = _bad(draft)
    if not again:
        raise InvalidTransitionError(f"run {draft.run.id} has {draft.run.state}: there is nothing to try again")
    return draft.definition.downstream(again)


def _scope(draft: Draft, event: RerunRequested) -> set[str]:
    names = {step.name for step in draft.definition.main}
    if event.scope == "all":
        return names
    if event.step not in names:
        raise InvalidTransitionError(f"run {draft.run.id} has no step {event.step!r} to begin at")
    if event.scope not in ("step", "downstream"):
        raise InvalidTransitionError(f"a rerun's scope is step, downstream or all, not {event.scope!r}")
    return {event.step} if event.scope == "step" else draft.definition.downstream({event.step})


def _reopen(draft: Draft, again: Collection[str], event: RetryRequested | RerunRequested) -> None:
    resume = isinstance(event, RetryRequested)
    why = "retry" if resume else "rerun"
    epoch = draft.run.epoch + 1
    old = {record.name: record for record in draft.mains()}
    fresh = [_fresh(draft, name, old, again, epoch) for name in old if name in again]
    bad = sum(record.state.is_bad for name, record in old.items() if name not in again)
    _open_run(draft, epoch, why, unfinished=len(again), bad=bad)
    _forget_compensations(draft, again, epoch, why)
    ready: list[str] = []
    for record in fresh:
        if resume and not record.waits_for and _resume(draft, old[record.name], epoch):
            continue
        draft.put(record, why)
        if not record.waits_for:
            ready.append(record.name)
    starting.begin_ready(draft, ready)


def _fresh(draft: Draft, name: str, old: dict[str, StepRecord], again: Collection[str], epoch: int) -> StepRecord:
    needs = draft.definition.by_name[name].needs
    kept = [old[need] for need in needs if need not in again]
    return StepRecord(
        name=name,
        epoch=epoch,
        waits_for=len(needs) - len(kept),
        upstream_failed=any(record.state.is_bad for record in kept),
        cascade=any(record.cascade for record in kept),
    )


def _open_run(draft: Draft, epoch: int, why: str, *, unfinished: int, bad: int) -> None:
    timeout = draft.definition.timeout
    deadline = None if timeout is None else draft.at + round(timeout * MICRO)
    run = replace(
        draft.run,
        state=RunState.RUNNING,
        epoch=epoch,
        ending=None,
        request=None,
        reason="",
        error=None,
        failed_step=None,
        unfinished=unfinished,
        bad=bad,
        finished_at=None,
        deadline_at=deadline,
    )
    draft.put_run(run, why)
    if deadline is not None:
        draft.set_timer("deadline", deadline)


def _forget_compensations(draft: Draft, again: Collection[str], epoch: int, why: str) -> None:
    names = [name for of, name in draft.definition.compensations.items() if of in again]
    for record in draft.steps([Key(name) for name in names]):
        if record.state is not StepState.PENDING:
            draft.put(StepRecord(name=record.name, epoch=epoch), why)


def _resume(draft: Draft, record: StepRecord, epoch: int) -> bool:
    """Go on inside the step, if there is an inside that can: a map, or the run it waits for."""
    if record.state not in (StepState.FAILED, StepState.CANCELLED):
        return False
    if isinstance(draft.declared(record).action, Map) and record.total is not None:
        maps.resume(draft, record, epoch)
        return True
    if record.child_id is None:
        return False
    draft.post(record.child_id, RetryRequested(at=draft.at, epoch=record.child_epoch, asked_by_parent=True))
    again = replace(record, state=StepState.EXPANDED, epoch=epoch, child_epoch=record.child_epoch + 1, error=None)
    draft.put(again, "retry")
    return True
