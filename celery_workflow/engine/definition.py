"""What a workflow is: a graph of steps, as a frozen value that is checked when it is made."""

from __future__ import annotations

import difflib
import hashlib
import json
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Any

from ..errors import DefinitionError
from .codec import TAG, storable, to_json
from .policies import NO_RETRY, Otherwise, RetryPolicy
from .values import RUN, Ref, references

__all__ = ["Action", "Call", "Definition", "Gather", "Map", "OnItemError", "Role", "Sleep", "Step", "Task", "Wait"]


@storable
class Role(StrEnum):
    """Why a step is there: to be done, to undo another, or to be told of the end."""

    MAIN = "main"
    COMPENSATION = "compensation"
    ON_SUCCESS = "on_success"
    ON_FAILURE = "on_failure"
    ON_CANCEL = "on_cancel"


@storable
class OnItemError(StrEnum):
    """What a map does when an item has failed."""

    #: No new items are begun; the map fails when those in flight have ended.
    FAIL = "fail"
    #: All the others are done first; then the map fails.
    FINISH = "finish"
    #: The item's result is None.
    SKIP = "skip"


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A Celery task with its arguments, in which references may stand."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: As for `apply_async`: queue, priority, time_limit, headers and the like.
    options: dict[str, Any] = field(default_factory=dict)
    #: Seconds between the step's turn and its due time.
    countdown: float | None = None
    #: The due time itself, in microseconds since 1970.
    eta: int | None = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Run a task. If it `expands`, the task's result is a definition, and the step is as long as that run."""

    call: Call
    expands: bool = False


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Run a task once for each item of a list; the item goes before the other arguments."""

    call: Call
    items: Any
    #: The item is a list of several arguments.
    star: bool = False
    max_parallel: int | None = None
    on_error: OnItemError = OnItemError.FAIL


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Wait for a number of seconds, or until an instant (ISO 8601 text; UTC unless it says so)."""

    seconds: Any = None
    until: Any = None


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Wait for a signal; its payload is the result. `timeout` is in seconds, None for ever."""

    signal: str
    timeout: Any = None
    on_timeout: Otherwise = Otherwise.FAIL


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Put a value together; takes no time. It keeps two groups in a row from needing an edge for each pair."""

    value: Any


Action = Task | Map | Sleep | Wait | Gather

#: Values that JSON has not, but whose text says all of them.
_SAYS_ALL = frozenset({Decimal, uuid.UUID, date, datetime, time, bytes})


# A slot cannot hold a cached property.
@storable
@dataclass(frozen=True, kw_only=True)
class Step:
    """A node of the graph."""

    name: str
    action: Action
    after: tuple[str, ...] = ()
    when: Any = True
    on_unmet: Otherwise = Otherwise.SKIP
    retry: RetryPolicy = NO_RETRY
    on_exhausted: Otherwise = Otherwise.FAIL
    role: Role = Role.MAIN
    #: What a compensation undoes; whose failure a handler is told of (none named: the run's).
    of: tuple[str, ...] = ()
    #: Where it was declared, for error messages.
    place: str = field(default="", compare=False)

    @property
    def call(self) -> Call | None:
        """The task it runs, if it runs one."""
        return self.action.call if isinstance(self.action, Task | Map) else None

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The steps it follows, each once: those whose results it uses and those named in `after`."""
        found = [ref.step for ref in references([*_values(self.action), self.when])]
        return tuple(dict.fromkeys(name for name in (*self.after, *found) if name != RUN))


@storable
@dataclass(frozen=True, kw_only=True)
class Definition:
    """A workflow. Making one checks it: DefinitionError says what is wrong and where."""

    name: str
    steps: tuple[Step, ...]
    #: Made of the steps' results: the result of the run.
    result: Any = None
    version: int = 1
    #: Whether a failed step stops the others; otherwise what does not need it is finished first.
    fail_fast: bool = True
    #: Seconds that a run may take.
    timeout: float | None = None

    def __post_init__(self) -> None:
        _check_names(self)
        _check_needs(self)
        _check_cycles(self)

    @cached_property
    def by_name(self) -> Mapping[str, Step]:
        return {step.name: step for step in self.steps}

    @cached_property
    def main(self) -> tuple[Step, ...]:
        """The steps that a run is made of."""
        return tuple(step for step in self.steps if step.role is Role.MAIN)

    @cached_property
    def followers(self) -> Mapping[str, tuple[str, ...]]:
        """For each main step, those that need it."""
        found: dict[str, list[str]] = {step.name: [] for step in self.main}
        for step in self.main:
            for name in step.needs:
                found[name].append(step.name)
        return {name: tuple(names) for name, names in found.items()}

    @cached_property
    def compensations(self) -> Mapping[str, str]:
        """For each step that can be undone, the step that undoes it."""
        return {of: step.name for step in self.steps if step.role is Role.COMPENSATION for of in step.of}

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same shape: names, tasks, edges and policies, whatever the plain arguments are."""
        return _digest([self.name, self.version, self.fail_fast, self.timeout, *map(_shape, self.steps)])

    @cached_property
    def digest(self) -> str:
        """The same for equal definitions only: under it one stored copy serves many runs."""
        return _digest(to_json(replace(self, steps=tuple(replace(step, place="") for step in self.steps))), _told_apart)

    def downstream(self, names: Collection[str]) -> set[str]:
        """These steps and all that follow them."""
        found, queue = set(names), deque(names)
        while queue:
            fresh = [name for name in self.followers[queue.popleft()] if name not in found]
            found.update(fresh)
            queue.extend(fresh)
        return found

    def check_tasks(self, known: Collection[str]) -> None:
        """Raises DefinitionError if a step runs a task that is not among these names."""
        for step in self.steps:
            if step.call and step.call.task not in known:
                raise DefinitionError(f"{_at(step)}no task is called {step.call.task!r}{_near(step.call.task, known)}")


def _values(action: Action) -> Iterator[Any]:
    match action:
        case Task(call=call):
            yield from (call.args, call.kwargs)
        case Map(call=call, items=items):
            yield from (call.args, call.kwargs, items)
        case Sleep(seconds=seconds, until=until):
            yield from (seconds, until)
        case Wait(timeout=timeout):
            yield timeout
        case Gather(value=value):
            yield value


def _check_names(definition: Definition) -> None:
    for name, times in Counter(step.name for step in definition.steps).items():
        if times > 1 or not name or name == RUN:
            last = [step for step in definition.steps if step.name == name][-1]
            reason = "is already taken" if times > 1 else "is no name for a step"
            raise DefinitionError(f"{_at(last)}{name!r} {reason}")


def _check_needs(definition: Definition) -> None:
    known = [step.name for step in definition.main]
    names = set(known)
    for step in definition.steps:
        for name in (*step.needs, *step.of):
            if name not in names:
                raise DefinitionError(f"{_at(step)}there is no step {name!r}{_near(name, known)}")
    for ref in references(definition.result):
        if ref.step not in names:
            raise DefinitionError(
                f"workflow {definition.name!r}: its result needs a step {ref.step!r}{_near(ref.step, known)}"
            )


def _check_cycles(definition: Definition) -> None:
    """Take away what waits for nothing, again and again: a cycle is what remains."""
    waits = {step.name: len(step.needs) for step in definition.main}
    queue = deque(name for name, count in waits.items() if not count)
    while queue:
        name = queue.popleft()
        del waits[name]
        for follower in definition.followers[name]:
            waits[follower] -= 1
            if not waits[follower]:
                queue.append(follower)
    if waits:
        cycle = _cycle(definition, waits)
        raise DefinitionError(f"{_at(definition.by_name[cycle[0]])}steps wait for each other: {' -> '.join(cycle)}")


def _cycle(definition: Definition, within: Collection[str]) -> list[str]:
    path = [next(iter(within))]
    while True:
        name = next(name for name in definition.by_name[path[-1]].needs if name in within)
        if name in path:
            return [*path[path.index(name) :], name][::-1]
        path.append(name)


def _at(step: Step) -> str:
    return f"{step.place}: step {step.name!r}: " if step.place else f"step {step.name!r}: "


def _near(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _shape(step: Step) -> Any:
    """The step without the plain values of its arguments."""
    bare: Any = step.action
    if isinstance(bare, Task | Map):
        call = bare.call
        bare = replace(bare, call=replace(call, args=_refs(call.args), kwargs={"": _refs(call.kwargs)}, eta=None))
    if isinstance(bare, Map):
        bare = replace(bare, items=_refs(bare.items))
    if isinstance(bare, Gather):
        bare = replace(bare, value=_refs(bare.value))
    return to_json(replace(step, action=bare, place=""))


def _refs(value: Any) -> tuple[Ref, ...]:
    return tuple(references(value))


def _digest(value: Any, leaf: Callable[[Any], Any] = repr) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=leaf).encode()).hexdigest()[:32]


def _told_apart(leaf: Any) -> Any:
    """Two objects of a user's class may look the same and not be: what has one in it is like nothing else."""
    return {TAG: type(leaf).__name__, "": repr(leaf) if type(leaf) in _SAYS_ALL else str(uuid.uuid4())}
