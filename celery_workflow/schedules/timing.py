"""When: the kinds of specs, each a function from an instant to the next tick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol

from .cron import Fields
from .zones import DAY, SECOND, Zone

__all__ = ["Clocked", "Cron", "DSTMissing", "DSTRepeated", "Interval", "Spec", "WallInterval"]

DSTRepeated = Literal["first", "last", "both"]
DSTMissing = Literal["shift", "skip"]


class Spec(Protocol):
    """What says when ticks are. Instants are microseconds since 1970-01-01 UTC."""

    def after(self, instant: int) -> int | None:
        """The first tick after the instant, None if there is none."""


@dataclass(frozen=True, slots=True)
class Clocked:
    """Once."""

    at: int

    def after(self, instant: int) -> int | None:
        return self.at if self.at > instant else None


@dataclass(frozen=True, slots=True)
class Interval:
    """Every `period` microseconds of real time, on a grid that goes through the anchor."""

    period: int
    anchor: int

    def after(self, instant: int) -> int:
        return self.anchor + ((instant - self.anchor) // self.period + 1) * self.period


@dataclass(frozen=True, slots=True)
class WallInterval:
    """Every `period` microseconds of wall time, on a grid that begins at a midnight, full hour or minute.

    What Celery calls relative: a period of days comes at midnight, also where a day has 23 hours.
    """

    period: int
    anchor: int
    zone: Zone

    def after(self, instant: int) -> int:
        period = timedelta(microseconds=self.period)
        anchor = _rounded(self.zone.wall(self.anchor), self.period)
        wall = self.zone.wall(instant)
        while True:
            wall = anchor + ((wall - anchor) // period + 1) * period
            # In a repeated hour the clock shows a second time what has been.
            if (at := self.zone.first(wall)) > instant:
                return at


@dataclass(frozen=True, slots=True)
class Cron:
    """The wall times that match, where the clock shows them.

    What names every hour goes by real time: it fires in both passes of a repeated hour, and in a missing one not.
    What names hours fires once each day: in the `repeated` hour at the first or last pass (or both), and for
    times that are missing once, when the clock jumps over them, unless those are to be skipped.
    """

    fields: Fields
    zone: Zone
    repeated: DSTRepeated = "first"
    missing: DSTMissing = "shift"

    def after(self, instant: int) -> int | None:
        every_hour = self.fields.every_hour
        skips = every_hour or self.missing == "skip"
        repeated = "both" if every_hour else self.repeated
        candidates = []
        if repeated in ("first", "both"):
            candidates.append(self._next(instant, self.zone.wall(instant), self.zone.first, skips))
        if repeated in ("last", "both"):
            # What the clock has shown already may come once more.
            start = self.zone.wall(instant) - self.zone.set_back_after(instant)
            candidates.append(self._next(instant, start, self.zone.last, skips))
        found = [each for each in candidates if each is not None]
        return min(found, default=None)

    def _next(self, instant: int, start: datetime, at: Callable[[datetime], int], skips: bool) -> int | None:
        wall = self.fields.after(start)
        while wall is not None:
            if not (skips and not self.zone.shows(wall)) and (found := at(wall)) > instant:
                return found
            wall = self.fields.after(wall)
        return None


def _rounded(wall: datetime, period: int) -> datetime:
    """Down to the largest unit that the period has a whole one of."""
    if period >= DAY:
        return wall.replace(hour=0, minute=0, second=0, microsecond=0)
    if period >= 3600 * SECOND:
        return wall.replace(minute=0, second=0, microsecond=0)
    return wall.replace(second=0, microsecond=0) if period >= 60 * SECOND else wall.replace(microsecond=0)
