"""What can happen to a run. `at` is the database's time, in microseconds since 1970.

Every event may be given twice, late, or in any order with others: what is out of date is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .codec import storable
from .definition import Definition
from .policies import Error
from .states import RunState

__all__ = [
    "CancelRequested",
    "ChildFinished",
    "DeadlinePassed",
    "Event",
    "Outcome",
    "RerunRequested",
    "RetryRequested",
    "RunAdmitted",
    "SignalReceived",
    "StepFailed",
    "StepRetried",
    "StepSnoozed",
    "StepStarted",
    "StepSucceeded",
    "StepWithdrawn",
    "TimerFired",
]


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Root of all events."""

    at: int


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class RunAdmitted(Event):
    """The run's turn has come: its start time, or its place in the line of its concurrency key."""


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Event):
    """Something about one attempt of a step or item."""

    name: str
    index: int | None = None
    epoch: int = 1
    attempt: int = 1


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(Outcome):
    """A worker has begun the attempt. May be missing; nothing depends on it."""


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class StepSucceeded(Outcome):
    """The task returned. A step that expands, or whose task replaced itself, brings the definition of what follows."""

    result: Any = None
    expansion: Definition | None = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed(Outcome):
    """The task raised, ran out of time, was revoked, or its worker died too often."""

    error: Error


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class StepRetried(Outcome):
    """The task asked for another try by `self.retry`, which Celery counts; perhaps with other arguments."""

    due_at: int
    retries: int = 1
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    error: Error | None = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class StepSnoozed(Outcome):
    """The task wants to be tried later; no attempt is spent."""

    due_at: int


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class StepWithdrawn(Outcome):
    """The message was taken back, or its process stopped, before the task came to an end."""


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Event):
    """A timer that a decision set; it is recognised by the due time it was set for."""

    name: str
    kind: str
    due_at: int


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePassed(Event):
    """The run has had its time."""

    due_at: int


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReceived(Event):
    """A signal from outside. The second one of an id is ignored."""

    id: str
    name: str
    payload: Any = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFinished(Event):
    """The run that a step or item waits for has ended, in its so-manieth epoch."""

    name: str
    index: int | None = None
    child_id: str
    child_epoch: int
    state: RunState
    result: Any = None
    error: Error | None = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """Stop, undo what is to be undone, end as cancelled; the runs it waits for too, or else they go on alone."""

    reason: str = ""
    children: bool = True


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequested(Event):
    """Go on from what failed, keeping what succeeded. `epoch` is the one to end: a second request is ignored.

    With `wait` it is done when the run is admitted: another run has its concurrency key. A run that is `asked_by_parent`
    owes an answer: where it is over and there is nothing to do, it tells again how it ended.
    """

    epoch: int
    wait: bool = False
    asked_by_parent: bool = False


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class RerunRequested(Event):
    """Do a step again: only it (`step`), with what follows it (`downstream`), or the whole run (`all`).

    `epoch` and `wait` are as for a retry.
    """

    epoch: int
    wait: bool = False
    step: str | None = None
    scope: str = "downstream"
