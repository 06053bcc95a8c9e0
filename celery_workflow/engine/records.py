"""What is kept of a run: a row for it, one for each step touched, one for each item of a map, one for each signal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .codec import storable
from .definition import Definition
from .events import Event
from .policies import Error
from .states import RunState, StepState

__all__ = ["Key", "Parent", "RunRecord", "RunView", "SignalRecord", "StepRecord"]


@dataclass(frozen=True, slots=True)
class Key:
    """A step of a run, or an item of a step that is a map."""

    name: str
    index: int | None = None


@storable
@dataclass(frozen=True, slots=True)
class Parent:
    """The step, or item, that waits for a run to end."""

    run_id: str
    name: str
    index: int | None = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run. Times are microseconds since 1970."""

    id: str
    state: RunState = RunState.PENDING
    #: How it will end when what is in flight and to be undone is done.
    ending: RunState | None = None
    reason: str = ""
    error: Error | None = None
    failed_step: str | None = None
    #: Rises with each retry and rerun.
    epoch: int = 1
    #: Main steps that are not over, and those that are over in a bad state.
    unfinished: int = 0
    bad: int = 0
    #: How many steps have succeeded, and how many signals have come: the orders of both.
    completions: int = 0
    signals: int = 0
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    deadline_at: int | None = None
    concurrency_key: str | None = None
    #: The retry or rerun that is done when the run is admitted.
    request: Event | None = None
    parent: Parent | None = None
    root_id: str | None = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step of a run, or an item of a map. A step without a row is pending."""

    name: str
    index: int | None = None
    state: StepState = StepState.PENDING
    #: (epoch, attempt) is the fence: only the newest attempt of the newest epoch has an outcome.
    epoch: int = 1
    attempt: int = 0
    #: Failures that count for the retry policy, and Celery's own count of `self.retry`.
    failures: int = 0
    retries: int = 0
    #: Needed steps that are not over; whether one of those that are over has failed, or skips what follows.
    waits_for: int = 0
    upstream_failed: bool = False
    cascade: bool = False
    first_due_at: int | None = None
    changed_at: int = 0
    due_at: int | None = None
    error: Error | None = None
    #: Its place among the steps that succeeded.
    order: int | None = None
    child_id: str | None = None
    child_epoch: int = 1
    #: Of an item: what it is about.
    value: Any = None
    #: Of a map: items in all, stored so far, sent so far, over so far, failed.
    total: int | None = None
    inserted: int = 0
    sent: int = 0
    done: int = 0
    failed_items: int = 0
    #: No item below it is pending.
    cursor: int = 0
    #: A timer is set to store the next chunk; no more items shall begin.
    expanding: bool = False
    stopped: bool = False

    @property
    def key(self) -> Key:
        return Key(self.name, self.index)

    @property
    def in_flight(self) -> int:
        """Of a map: how many items have begun and are not over."""
        return self.sent - self.done


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecord:
    """A signal that came; `taken_by` names the step that has it for a result."""

    id: str
    name: str
    payload: Any = None
    order: int = 0
    received_at: int = 0
    taken_by: str | None = None


class RunView(Protocol):
    """A locked run, as much of it as somebody asks for. Nothing else may change it meanwhile.

    A store answers each question by one query at most, so that the outcome of one item among 100,000
    reads three rows. It does well to remember results from one event to the next: that of a step that is
    over stays the same for an epoch, and a large one may be an argument of every item of a map.
    """

    @property
    def definition(self) -> Definition: ...

    @property
    def run(self) -> RunRecord: ...

    def steps(self, keys: Iterable[Key]) -> Mapping[Key, StepRecord]:
        """The rows that exist under these keys."""

    def items(self, name: str, states: Collection[StepState]) -> Sequence[StepRecord]:
        """All items of a map that are in one of these states, by index."""

    def pending_items(self, name: str, start: int, limit: int) -> Sequence[StepRecord]:
        """The first pending items of a map from an index on."""

    def results(self, names: Iterable[str]) -> Mapping[str, Any]:
        """What is stored of the results of these steps, and of the run under `$run`; of a map, a list of `total`
        results, None for items that have not succeeded."""

    def signals(self, name: str) -> Sequence[SignalRecord]:
        """Signals of this name that nobody has taken, oldest first."""

    def has_signal(self, signal_id: str) -> bool:
        """Whether a signal of this id has come, taken or not."""
