"""The states of runs and steps, and the moves between them.

A run::

    pending -> running -> succeeded
                  |
                  +-> stopping -> compensating -> failed | cancelled | discarded
                                                     |
                  running <- retry, rerun -----------+
       (by way of pending, if another run has its concurrency key)

A step::

    pending -> sent <-> running -> succeeded | failed | skipped
       |         |
       |         +-> expanded  (waits for a child run)
       +-> sleeping | awaiting | mapping
       +-> skipped | cancelled | upstream_failed

Over states lead back to pending only by a retry or rerun, under a new epoch.
"""

from __future__ import annotations

from enum import StrEnum

from ..errors import InvalidTransitionError
from .codec import storable

__all__ = ["IN_FLIGHT", "RunState", "StepState", "check_run_move", "check_step_move"]


@storable
class RunState(StrEnum):
    """Where a run is."""

    PENDING = "pending"
    RUNNING = "running"
    #: Nothing new is started; what is in flight is waited for.
    STOPPING = "stopping"
    COMPENSATING = "compensating"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"

    @property
    def is_over(self) -> bool:
        return self in _RUN_ENDS


@storable
class StepState(StrEnum):
    """Where a step of a run, or an item of a map, is."""

    PENDING = "pending"
    SENT = "sent"
    RUNNING = "running"
    SLEEPING = "sleeping"
    AWAITING = "awaiting"
    MAPPING = "mapping"
    EXPANDED = "expanded"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    UPSTREAM_FAILED = "upstream_failed"

    @property
    def is_over(self) -> bool:
        return self in _STEP_ENDS

    @property
    def is_bad(self) -> bool:
        """Over, but not as the workflow wants it."""
        return self in _STEP_BAD


_RUN_ENDS = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.DISCARDED})
_STEP_BAD = frozenset({StepState.FAILED, StepState.CANCELLED, StepState.UPSTREAM_FAILED})
_STEP_ENDS = _STEP_BAD | {StepState.SUCCEEDED, StepState.SKIPPED}
#: A message of the step is somewhere.
IN_FLIGHT = frozenset({StepState.SENT, StepState.RUNNING})

_OUTCOMES = frozenset({StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED})
_STEP_MOVES: dict[StepState, frozenset[StepState]] = {
    StepState.PENDING: _STEP_ENDS
    | {StepState.SENT, StepState.SLEEPING, StepState.AWAITING, StepState.MAPPING, StepState.PENDING},
    StepState.SENT: _OUTCOMES | {StepState.SENT, StepState.RUNNING, StepState.EXPANDED},
    StepState.RUNNING: _OUTCOMES | {StepState.SENT, StepState.RUNNING, StepState.EXPANDED},
    StepState.SLEEPING: frozenset({StepState.SUCCEEDED, StepState.CANCELLED}),
    StepState.AWAITING: _OUTCOMES,
    StepState.MAPPING: _OUTCOMES | {StepState.MAPPING},
    StepState.EXPANDED: _OUTCOMES,
} | {over: frozenset({StepState.PENDING, StepState.MAPPING, StepState.EXPANDED}) for over in _STEP_ENDS}

_RUN_MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.PENDING: frozenset({RunState.RUNNING, RunState.STOPPING}),
    RunState.RUNNING: frozenset({RunState.STOPPING, RunState.COMPENSATING, RunState.SUCCEEDED, RunState.FAILED}),
    RunState.STOPPING: frozenset({RunState.COMPENSATING}),
    RunState.COMPENSATING: frozenset({RunState.FAILED, RunState.CANCELLED, RunState.DISCARDED}),
} | {over: frozenset({RunState.RUNNING, RunState.PENDING}) for over in _RUN_ENDS}


def check_step_move(name: str, old: StepState, new: StepState) -> None:
    """Raises InvalidTransitionError for a move that the picture does not have."""
    if new not in _STEP_MOVES[old]:
        raise InvalidTransitionError(f"step {name!r} cannot go from {old} to {new}")


def check_run_move(run_id: str, old: RunState, new: RunState) -> None:
    """Raises InvalidTransitionError for a move that the picture does not have."""
    if new is not old and new not in _RUN_MOVES[old]:
        raise InvalidTransitionError(f"run {run_id} cannot go from {old} to {new}")
