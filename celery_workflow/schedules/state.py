"""A schedule as it is stored: what it says, and what became of it so far. Ticks as they are recorded."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .definition import Definition, Timetable

__all__ = ["Advance", "Cause", "Outcome", "Schedule", "Tick"]


class Cause(enum.StrEnum):
    """Why a tick came about."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    BACKFILL = "backfill"


class Outcome(enum.StrEnum):
    """What became of a tick."""

    FIRED = "fired"
    SKIPPED = "skipped"
    MISFIRED = "misfired"


@dataclass(frozen=True)
class Schedule:
    """A row. Its `definition` and `timetable` raise ScheduleError if somebody wrote nonsense into it.

    Instants are microseconds since 1970-01-01 UTC.
    """

    id: int
    name: str
    says: Mapping[str, Any] = field(repr=False)
    """The fields of the definition, unchecked."""
    created_at: int | None = None
    paused_at: int | None = None
    note: str | None = None
    origin: str = "api"
    synced: Mapping[str, Any] | None = field(default=None, repr=False)
    removed_at: int | None = None
    next_at: int | None = None
    due_at: int | None = None
    last_at: int | None = None
    last_fired_at: int | None = None
    late_for: int | None = None
    last_task_id: str | None = None
    last_message: int | None = None
    queued_at: int | None = None
    runs: int = 0
    finished_at: int | None = None
    error: str | None = None

    @cached_property
    def definition(self) -> Definition:
        return Definition(**self.says)

    @cached_property
    def timetable(self) -> Timetable:
        return Timetable(self.definition, created_at=self.created_at or 0)

    @property
    def active(self) -> bool:
        """Whether it may have ticks at all."""
        return bool(self.says["enabled"]) and self.paused_at is None and self.removed_at is None

    def next_after(self, now: int) -> int | None:
        """Its first tick after now, and after the last one; None if it has none, or may have none."""
        definition = self.definition
        if not self.active or (definition.max_runs is not None and self.runs >= definition.max_runs):
            return None
        return self.timetable.first(now=max(now, self.last_at or 0))


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick and what became of it."""

    schedule: int
    tick_at: int
    outcome: Outcome
    cause: Cause = Cause.SCHEDULE
    reason: str | None = None
    handled_at: int = 0
    late_for: int | None = None
    task_id: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Advance:
    """What a firing writes: how the schedule stands from now on, and the ticks that were handled."""

    schedule: Schedule
    ticks: Sequence[Tick] = ()
