"""The contract of the store of runs. What a docstring says here, the conformance suite proves.

Time is the database's, in microseconds since 1970. Each method is one transaction of its own, unless a transaction was
lent to the caller (`kombu_sqlqueue.in_transaction`): then `create` and `give` take part in that.

A store decides nothing: it locks a run, lets the engine decide, and writes the decision. Who has the lock of a run may
lock the line of its concurrency key; nobody who has a line waits for a run, nor for a second run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from ..engine.decision import Decision, Send
from ..engine.definition import Definition
from ..engine.events import Event
from ..engine.journal import Entry
from ..engine.policies import Error
from ..engine.records import Key, Parent, RunRecord, RunView, SignalRecord, StepRecord
from ..engine.states import RunState

__all__ = ["TOPIC", "Effects", "Happening", "Listed", "NewRun", "Query", "RunStore", "Serializer", "StoredRun", "Written"]

#: What is announced, with the prefix of the tables, when an event has been stored that is due later.
TOPIC = "workflow:{prefix}"

#: Given the time and the locked run: what happens to it, or None for nothing after all.
Happening = Callable[[int, RunView], Event | None]


class Serializer(Protocol):
    """How values of users become text; `to_json` of the codec is applied before, `from_json` after."""

    def dumps(self, value: Any) -> str:
        """Raises ValueError or TypeError for what cannot be stored."""

    def loads(self, text: str) -> Any: ...


class Effects(Protocol):
    """What a decision does outside of the tables of runs, called within the transaction that writes it.

    What these raise rolls the transaction back and is raised by the store's method. The transaction may be repeated.
    """

    def settle(self, tx: Any) -> bool:
        """Called first: end the message whose outcome is given. False if somebody else has its newest delivery."""

    def decided(self, tx: Any, decision: Decision) -> None:
        """Called with the decision about the event that was given, before the rest, unless the event is ignored."""

    def send(self, tx: Any, run: RunRecord, definition: Definition, sends: Sequence[Send]) -> Sequence[tuple[Send, Error]]:
        """Publish these tasks of the run, in the run's priority where they have none of their own.

        The answer is which cannot be sent, whoever tries, and why: the store reports each as `StepFailed`, in the same
        transaction.
        """

    def take_back(self, tx: Any, run: RunRecord, task_ids: Collection[str], *, terminate: bool) -> Collection[str]:
        """Delete the messages of these tasks that no worker has, and see to it that the others are revoked.

        The answer is which were deleted: the store reports each as `StepWithdrawn`, in the same transaction.
        """

    def ended(self, tx: Any, run: RunRecord, definition: Definition, result: Any) -> None:
        """The run is over (again)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be created. `start_at` is an instant, None for now."""

    id: str
    definition: Definition
    inputs: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str | None = None
    #: Of the messages of its steps that have none of their own.
    priority: int | None = None
    concurrency_key: str | None = None
    start_at: int | None = None
    parent: Parent | None = None
    root_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written: the decision about the run that was asked for, and stored events that are due already.

    Whoever wrote it does well to `deliver` those at once: nobody is woken for them.
    """

    decision: Decision
    due: tuple[int, ...] = ()
    #: `Effects.settle` said that somebody else has the message, and the attempt is still current: nothing was written.
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run and what it was started with."""

    record: RunRecord
    definition: Definition
    inputs: Mapping[str, Any]
    labels: Mapping[str, str]
    tenant: str | None
    priority: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A run in a listing. `number` is its place in the order of creation, for the next page's cursor."""

    number: int
    id: str
    workflow: str
    version: int
    state: RunState
    labels: Mapping[str, str]
    tenant: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    failed_step: str | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which runs to list: all that is given must hold. `waiting` is "timer" or "signal"."""

    states: Collection[RunState] = ()
    workflow: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str | None = None
    waiting: str | None = None
    failed_step: str | None = None


class RunStore(Protocol):
    """Runs, their steps, signals, memos and journal, and events that are on their way to them."""

    # -- changing -----------------------------------------------------------------------------

    def create(self, runs: Sequence[NewRun], effects: Effects) -> list[Written | None]:
        """Create these runs in one transaction, and start those whose turn it is. None for an id that exists already.

        A run with a `start_at` in the future waits for that; one with a concurrency key then takes its place in the line
        of that key: first come, first served, one at a time. A definition is stored once, however many runs it has.
        """

    def give(self, run_id: str, happening: Happening, effects: Effects) -> Written:
        """Let something happen to the run: lock, decide, write, in one transaction.

        A retry or rerun takes its place at the end of the line of its key. A rerun forgets the memos of its steps.
        Raises RunNotFoundError, InvalidTransitionError for what the run's state does not allow, and ValueError or
        TypeError for a result that cannot be stored.
        """

    def deliver(self, event_id: int, effects: Effects) -> Written | None:
        """Let a stored event that is due happen, and delete it; None if it is gone or not due, or if somebody has just
        locked its run. An event for a run that is gone is deleted."""

    def keep_memo(self, run_id: str, key: Key, name: str, value: Any) -> Any:
        """Store a memo of a step or item; the answer is the value that is stored, which may be an earlier one.

        In a transaction of its own, whatever is lent to the caller.
        """

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete up to `limit` runs that ended longer ago, with all they have; the answer is how many.

        Not those whose parent is kept. Definitions without runs go, too.
        """

    # -- looking ------------------------------------------------------------------------------

    def now(self) -> int:
        """The database's time."""

    def due(self, limit: int) -> list[int]:
        """Stored events that are due, the oldest first."""

    def next_due(self) -> timedelta | None:
        """How long until a stored event is due, negative for one that is; None if there is none."""

    def get(self, run_id: str) -> StoredRun:
        """Raises RunNotFoundError."""

    def result(self, run_id: str, key: Key) -> Any:
        """The stored result of a step or item, or of the run (`$run`); None without one. Of a map, its items' results.
        Raises RunNotFoundError."""

    def results(self, run_id: str, names: Collection[str]) -> Mapping[str, Any]:
        """The same for many steps in a few queries; those without one are missing."""

    def steps(self, run_id: str) -> list[StepRecord]:
        """The rows of its steps, without items. Raises RunNotFoundError."""

    def items(self, run_id: str, name: str, *, after: int = -1, limit: int = 1000) -> list[StepRecord]:
        """Items of a map by index."""

    def signals(self, run_id: str) -> list[SignalRecord]:
        """All its signals, in the order in which they came."""

    def journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[tuple[int, Entry]]:
        """Numbered entries, oldest first. Of a map's items only what went wrong is kept."""

    def errors(self, run_id: str, *, newest: int = 20) -> list[Entry]:
        """The latest entries about a failure, oldest first."""

    def progress(self, run_id: str) -> Mapping[str, int]:
        """How many of its steps are in each state, by one query; an item counts as one, a map itself does not, a step
        that was never touched is pending. Raises RunNotFoundError."""

    def children(self, run_id: str) -> list[str]:
        """The ids of runs that steps of this one have started."""

    def memo(self, run_id: str, key: Key, name: str) -> tuple[bool, Any]:
        """Whether there is such a memo, and its value."""

    def find(self, query: Query, *, before: int | None = None, limit: int = 100) -> list[Listed]:
        """Runs that fit, the newest first, those with a number below `before`."""

    def stalled(self, *, quiet_for: timedelta, limit: int, after: int = 0) -> list[tuple[int, str]]:
        """(number, id) of unfinished runs of which nothing was written for so long, by number. For a reconciler."""

    def whole(self, run_id: str) -> tuple[StoredRun, Mapping[Key, StepRecord]]:
        """A run with the rows of all its steps and items, as they are together at one moment. Raises RunNotFoundError."""
