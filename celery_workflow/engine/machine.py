"""THE state machine: what follows when something happens to a run. Pure: it reads a view and answers a decision.

A store locks the run, gives `decide` a view that reads rows when they are asked for, and writes the decision in the
same transaction: rows, results, signals and journal entries under their keys; messages, timers, children and posts.
An outcome costs the rows of its step and of what follows it; an item of a map, its own, the map's and the next item's.
Only a stop, a retry and a rerun read all steps of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import ending, maps, outcomes, rerunning, starting, stopping, waiting
from .decision import Decision
from .definition import Definition
from .draft import Draft
from .events import (
    CancelRequested,
    ChildFinished,
    DeadlinePassed,
    Event,
    RerunRequested,
    RetryRequested,
    RunAdmitted,
    SignalReceived,
    StepFailed,
    StepRetried,
    StepSnoozed,
    StepStarted,
    StepSucceeded,
    StepWithdrawn,
    TimerFired,
)
from .policies import MICRO
from .records import Key, Parent, RunRecord, RunView
from .states import RunState, StepState

__all__ = ["create", "decide"]

#: What each event does first. It returns why the event is ignored, or nothing.
_HANDLERS: dict[type[Event], Callable[[Draft, Any], str | None]] = {
    RunAdmitted: starting.admit,
    StepStarted: outcomes.started,
    StepSucceeded: outcomes.succeeded,
    StepFailed: outcomes.failed,
    StepRetried: outcomes.retried,
    StepSnoozed: outcomes.snoozed,
    StepWithdrawn: outcomes.withdrawn,
    ChildFinished: outcomes.child_finished,
    SignalReceived: waiting.signalled,
    DeadlinePassed: stopping.deadline_passed,
    CancelRequested: stopping.cancel,
    RetryRequested: rerunning.reopen,
    RerunRequested: rerunning.reopen,
}


def decide(view: RunView, event: Event) -> Decision:
    """What follows from the event. Raises InvalidTransitionError for a request that the run's state does not allow."""
    draft = Draft(view, event.at)
    ignored = _timer_fired(draft, event) if isinstance(event, TimerFired) else _HANDLERS[type(event)](draft, event)
    if ignored:
        return Decision(ignored=ignored)
    _settle(draft)
    return draft.decision()


def create(
    run_id: str,
    definition: Definition,
    *,
    at: int,
    start_at: int | None = None,
    wait: bool = False,
    concurrency_key: str | None = None,
    parent: Parent | None = None,
    root_id: str | None = None,
) -> Decision:
    """A new run. It starts at once, or waits for `RunAdmitted`: its start time, its place in the line of its key.

    The time that it may take begins with its start time, though not with its place.
    """
    begins = at if start_at is None else max(at, start_at)
    deadline = None if definition.timeout is None else begins + round(definition.timeout * MICRO)
    run = RunRecord(
        id=run_id,
        created_at=at,
        deadline_at=deadline,
        concurrency_key=concurrency_key,
        parent=parent,
        root_id=root_id,
    )
    draft = Draft(_Nothing(run, definition), at)
    draft.created()
    if deadline is not None:
        draft.set_timer("deadline", deadline)
    if not wait:
        starting.admit(draft, RunAdmitted(at=at))
    _settle(draft)
    return draft.decision()


def _timer_fired(draft: Draft, event: TimerFired) -> str | None:
    if event.kind == maps.EXPAND:
        return maps.expand(draft, event)
    return waiting.timer_fired(draft, event)


def _settle(draft: Draft) -> None:
    """Let everything follow that needs nothing from outside. A list, not recursion: chains of skipped steps are long."""
    while draft.finished or draft.undone:
        if draft.finished:
            _tell_followers(draft, draft.finished.popleft().name)
        else:
            draft.undone = False
            ending.undo_next(draft)
    if not draft.run.unfinished and draft.run.state in (RunState.RUNNING, RunState.STOPPING):
        ending.conclude(draft)
        _settle(draft)


def _tell_followers(draft: Draft, name: str) -> None:
    if draft.run.state is not RunState.RUNNING:
        return
    over = draft.step(name)
    for follower in draft.mains(draft.definition.followers[name]):
        # A failure stops the run and with it those that have not begun.
        if follower.state is not StepState.PENDING or draft.run.state is not RunState.RUNNING:
            continue
        told = draft.put(
            replace(
                follower,
                waits_for=follower.waits_for - 1,
                upstream_failed=follower.upstream_failed or over.state.is_bad,
                cascade=follower.cascade or over.cascade,
            ),
            "told",
        )
        if not told.waits_for:
            starting.begin(draft, told)


class _Nothing:
    """A run of which nothing is stored yet."""

    def __init__(self, run: RunRecord, definition: Definition) -> None:
        self.run = run
        self.definition = definition

    def steps(self, keys: Any) -> dict[Key, Any]:
        return {}

    def items(self, name: str, states: Any) -> list[Any]:
        return []

    def pending_items(self, name: str, start: int, limit: int) -> list[Any]:
        return []

    def results(self, names: Any) -> dict[str, Any]:
        return {}

    def signals(self, name: str) -> list[Any]:
        return []

    def has_signal(self, signal_id: str) -> bool:
        return False
