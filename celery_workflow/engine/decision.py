"""What `decide` answers: rows to write, and what to send, set and tell, all in one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .codec import storable
from .definition import Definition
from .events import Event
from .journal import Entry
from .records import Key, Parent, RunRecord, SignalRecord, StepRecord

__all__ = ["Child", "Decision", "Post", "Send", "Timer", "Withdraw"]


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Publish a task. A message of the same task id that is still there is replaced."""

    task_id: str
    name: str
    index: int | None
    epoch: int
    attempt: int
    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    #: Celery's count of `self.retry`, for the message's header.
    retries: int = 0
    #: Not before, in microseconds since 1970; None for now.
    due_at: int | None = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Take back the message of a step, or all messages of a map's items, and report each as `StepWithdrawn`.

    One that already runs is left to end, or asked to stop if `terminate`; its outcome is its report.
    """

    name: str
    terminate: bool = False


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """Give the run a `TimerFired`, or a `DeadlinePassed` if the kind is "deadline", at the due time."""

    kind: str
    due_at: int
    name: str = ""


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """Start a run for a step that waits for it; once, whatever happens: its id is always the same."""

    run_id: str
    definition: Definition
    parent: Parent
    root_id: str


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """An event for another run, delivered at least once."""

    run_id: str
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything that follows from an event. One that was ignored changes nothing and says why."""

    run: RunRecord | None = None
    steps: tuple[StepRecord, ...] = ()
    #: By step or item.
    results: dict[Key, Any] = field(default_factory=dict)
    signals: tuple[SignalRecord, ...] = ()
    entries: tuple[Entry, ...] = ()
    sends: tuple[Send, ...] = ()
    withdrawals: tuple[Withdraw, ...] = ()
    timers: tuple[Timer, ...] = ()
    children: tuple[Child, ...] = ()
    posts: tuple[Post, ...] = ()
    #: The run has ended and this is its result; its timers are of no use any more.
    ended: bool = False
    result: Any = None
    #: The next run in the line of this key may start.
    released: str | None = None
    ignored: str = ""
