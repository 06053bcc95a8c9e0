"""The contract of the store of schedules. What a docstring says here, the conformance suite proves.

Time is the database's. Each method is one transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from .definition import Definition
from .state import Advance, Schedule, Tick

__all__ = ["Decide", "ScheduleStore"]

#: Given the time, locked schedules, and the connection of the transaction: what to write of each.
Decide = Callable[[Any, int, Sequence[Schedule]], Sequence[Advance]]


class ScheduleStore(Protocol):
    """Schedules and their ticks."""

    def create(self, definitions: Sequence[Definition]) -> None:
        """Store them, with their first ticks, or none of them. Raises DuplicateScheduleError."""

    def get(self, name: str) -> Schedule:
        """The schedule of that name. Raises ScheduleNotFoundError."""

    def list(self, *, after: str = "", limit: int = 100) -> list[Schedule]:
        """Up to `limit` schedules whose names come after `after`, in the order of their names."""

    def change(self, name: str, fields: Mapping[str, Any]) -> Schedule:
        """Change fields of the definition; a change of when it fires reckons its next tick from now.

        What it fired and when is kept. Raises ScheduleNotFoundError, ScheduleError for what makes no sense.
        """

    def pause(self, name: str, note: str | None = None) -> None:
        """No ticks until `resume`. Raises ScheduleNotFoundError."""

    def resume(self, name: str) -> Schedule:
        """Go on with the first tick after now: those due meanwhile never fire. Raises ScheduleNotFoundError."""

    def delete(self, name: str) -> None:
        """Delete it with its history. Raises ScheduleNotFoundError."""

    def now(self) -> int:
        """The database's time."""

    def fire_due(self, decide: Decide, *, limit: int, only: int | None = None) -> Sequence[Advance]:
        """Lock up to `limit` due schedules that nobody else has locked, let `decide` say what to do, and write that.

        All of it is one transaction, also what `decide` does on the connection. `only` names one schedule.
        """

    def fire_one(self, decide: Decide, name: str) -> Sequence[Advance]:
        """The same for the schedule of that name, due or not. Raises ScheduleNotFoundError."""

    def blame(self, schedule: Schedule, error: str, *, again_in: timedelta | None) -> None:
        """Note an error, and look at the schedule again later, or with None only after a change.

        Nothing is done if somebody else has handled it since it was read.
        """

    def next_due(self) -> timedelta | None:
        """How long until a schedule is due; negative for one that is, None if none will be."""

    def handled(self, keys: Collection[tuple[int, int]], cause: str) -> set[tuple[int, int]]:
        """Which of these (schedule, tick) have been handled."""

    def history(self, name: str, *, limit: int) -> Sequence[Tick]:
        """The latest ticks. Raises ScheduleNotFoundError."""

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete some `limit` ticks that were handled longer ago, the oldest first; the answer is how many."""
