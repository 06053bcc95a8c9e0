"""An oracle for cron in zones that knows nothing of the code: it watches a clock, minute by minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

__all__ = ["clock_changes", "fired", "shown"]

MINUTE = timedelta(minutes=1)
Matches = Callable[[datetime], bool]


def clock_changes(name: str, year: int) -> list[datetime]:
    """The minutes of the year at which the zone's clock is set."""
    zone = ZoneInfo(name)
    found = []
    hour = datetime(year, 1, 1, tzinfo=UTC)
    offset = hour.astimezone(zone).utcoffset()
    while hour.year == year:
        later = hour + timedelta(hours=1)
        if later.astimezone(zone).utcoffset() != offset:
            minute = hour
            while minute.astimezone(zone).utcoffset() == offset:
                minute += MINUTE
            found.append(minute)
            offset = later.astimezone(zone).utcoffset()
        hour = later
    return found


def shown(name: str, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Each minute from start to end, with what the clock shows at it."""
    zone = ZoneInfo(name)
    minutes = []
    while start <= end:
        minutes.append((start, start.astimezone(zone).replace(tzinfo=None)))
        start += MINUTE
    return minutes


def fired(
    minutes: list[tuple[datetime, datetime]], matches: Matches, *, repeated: str = "first", missing: str = "shift"
) -> list[datetime]:
    """When someone who watches this clock, told the rules in words, would act.

    The first minute is for looking only.
    """
    last = {wall: minute for minute, wall in minutes}
    seen = {minutes[0][1]}
    acts = []
    before = minutes[0][1]
    for minute, wall in minutes[1:]:
        again = wall in seen
        wanted = {"first": not again, "last": last[wall] == minute, "both": True}[repeated]
        jumped_over = missing == "shift" and any(matches(each) for each in _between(before, wall))
        if (matches(wall) and wanted) or jumped_over:
            acts.append(minute)
        seen.add(wall)
        before = wall
    return acts


def _between(before: datetime, wall: datetime) -> Iterator[datetime]:
    skipped = before + MINUTE
    while skipped < wall:
        yield skipped
        skipped += MINUTE
