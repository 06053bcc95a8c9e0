"""What happened to a run, entry by entry; and the run as the entries tell it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from .codec import storable
from .policies import Error
from .records import Key, RunRecord, StepRecord
from .states import RunState, StepState

__all__ = ["Entry", "Picture", "StepPicture", "errors", "fold", "picture_of"]


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change of state, of the run or (with a name) of a step or item."""

    at: int
    state: str
    #: What made it change: "sent", "retry", "timeout", "cancel" and the like.
    why: str
    epoch: int
    name: str | None = None
    index: int | None = None
    attempt: int = 0
    #: The failure that this change is about.
    error: Error | None = None
    #: Entries of a map's chunk stand for so many items from `index` on.
    count: int = 1

    @property
    def failed_attempt(self) -> int:
        """The attempt that the error is of: a step that is sent again is at its next already."""
        return self.attempt - 1 if self.state == StepState.SENT else self.attempt


@storable
@dataclass(frozen=True, slots=True)
class StepPicture:
    """A step as users see it."""

    state: StepState = StepState.PENDING
    epoch: int = 1
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """A run as users see it. Steps that have never been touched are missing: they are pending."""

    state: RunState = RunState.PENDING
    epoch: int = 1
    steps: dict[Key, StepPicture] = field(default_factory=dict)


def fold(entries: Iterable[Entry]) -> Picture:
    """The run that the entries tell of; always what its rows say (`picture_of`)."""
    picture = Picture()
    for entry in entries:
        if entry.name is None:
            picture = replace(picture, state=RunState(entry.state), epoch=entry.epoch)
            continue
        step = StepPicture(StepState(entry.state), entry.epoch, entry.attempt)
        for key in _keys(entry, entry.name):
            picture.steps[key] = step
    return picture


def picture_of(run: RunRecord, steps: Iterable[StepRecord]) -> Picture:
    """The run that the rows tell of."""
    shown = {step.key: StepPicture(step.state, step.epoch, step.attempt) for step in steps}
    return Picture(run.state, run.epoch, shown)


def errors(entries: Iterable[Entry], *, newest: int = 20) -> list[dict[str, Any]]:
    """The last failures, oldest first: of attempts that were retried, too."""
    found = [
        {"at": entry.at, "step": entry.name, "index": entry.index, "attempt": entry.failed_attempt, "error": entry.error}
        for entry in entries
        if entry.error is not None
    ]
    return found[-newest:] if newest > 0 else []


def _keys(entry: Entry, name: str) -> list[Key]:
    if entry.index is None:
        return [Key(name)]
    return [Key(name, index) for index in range(entry.index, entry.index + entry.count)]
