"""Windows: the times of the week in which a schedule's ticks lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from ..errors import ScheduleError

__all__ = ["Window"]

NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
_TEXT = re.compile(r"(?:(?P<days>[a-z][a-z,-]*) +)?(?P<begin>\d{1,2}:\d\d) *- *(?P<end>\d{1,2}:\d\d)")


@dataclass(frozen=True, slots=True)
class Window:
    """On these weekdays (0 is Monday), from so long after midnight, for so long."""

    days: frozenset[int]
    begin: timedelta
    length: timedelta

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> Window:
        """Such as ``Mon-Fri 09:00-18:00``, ``22:00-06:00`` or ``Sat,Sun 00:00-24:00``. The end is outside.

        Raises ScheduleError for anything else.
        """
        match = _TEXT.fullmatch(text.strip().lower())
        if match is None:
            raise _wrong(text)
        begin, end = (_time(match[name], text) for name in ("begin", "end"))
        length = end - begin if end > begin else end - begin + DAY
        return Window(_days(match["days"], text), begin, length)

    def holds(self, wall: datetime) -> bool:
        """Whether the wall time lies inside."""
        return any(opened <= wall < opened + self.length for opened in self._openings(wall, -1, 0))

    def opens_after(self, wall: datetime) -> datetime:
        """The wall time of the next opening."""
        return next(opened for opened in self._openings(wall, 0, 7) if opened > wall)

    def _openings(self, wall: datetime, first: int, last: int) -> list[datetime]:
        midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
        days = (midnight + DAY * number for number in range(first, last + 1))
        return [day + self.begin for day in days if day.weekday() in self.days]


def _days(text: str | None, whole: str) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        days.update(_range(_day(first, whole), _day(last or first, whole)))
    return frozenset(days)


def _range(first: int, last: int) -> list[int]:
    return [number % 7 for number in range(first, (last if last >= first else last + 7) + 1)]


def _day(text: str, whole: str) -> int:
    if text[:3] not in NAMES:
        raise _wrong(whole)
    return NAMES.index(text[:3])


def _time(text: str, whole: str) -> timedelta:
    hours, minutes = map(int, text.split(":"))
    time = timedelta(hours=hours, minutes=minutes)
    if minutes > 59 or time > DAY:
        raise _wrong(whole)
    return time


def _wrong(text: str) -> ScheduleError:
    return ScheduleError(f"window is {text!r}, but must be like 'Mon-Fri 09:00-18:00'")
