"""Cron: which wall times match, as text or as the sets of Celery's crontab.

Croniter reads the text, but does not walk the clock: what it does where a clock is set is not ours to choose, and
depends on where it starts. So it never sees a zone here; it says what the text means, and `zones` where that is.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from croniter import croniter

from ..errors import ScheduleError

__all__ = ["Fields", "parse_cron", "parse_crontab"]

#: The 29th of February may fall on a given weekday only every 40 years, when a century is in between.
LOOK_AHEAD = timedelta(days=366 * 41)
MINUTES_HOURS_DAYS_MONTHS_WEEKDAYS = 5
LAST = "l"
#: What the macros stand for that croniter has, and one more that people write.
MACROS = "@yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"
_RANDOM = re.compile(r"(?<![a-z@])r(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fields:
    """What matches, field by field; each is sorted. A weekday is 0 for Sunday to 6."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    last_day: bool = False
    nth: Mapping[int, frozenset[int | str]] = field(default_factory=dict)
    """Which of its weekdays in a month: 1 to 5, or "l" for the last."""
    either: bool = False
    """Both days and weekdays are restricted, and one of them is enough."""

    @property
    def every_hour(self) -> bool:
        """Whether no hour is left out: such a spec follows real time where clocks jump."""
        return len(self.hours) == 24

    def after(self, wall: datetime) -> datetime | None:
        """The first wall time after `wall` that matches, None if there is none in 41 years."""
        start = wall.replace(microsecond=0) + timedelta(seconds=1)
        for day in self._days_from(start.date()):
            found = self._first_time(start.time() if day == start.date() else time.min)
            if found is not None:
                return datetime.combine(day, found)
        return None

    def _days_from(self, day: date) -> Iterator[date]:
        end = day + LOOK_AHEAD if day.year < 9000 else date.max
        while day < end:
            if day.month not in self.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
                continue
            if self._matches(day):
                yield day
            day += timedelta(days=1)

    def _matches(self, day: date) -> bool:
        in_month = day.day in self.days or (self.last_day and day.day == _length(day))
        weekday = day.isoweekday() % 7
        in_week = weekday in self.weekdays and (weekday not in self.nth or self._is_nth(day, self.nth[weekday]))
        return in_month or in_week if self.either else in_month and in_week

    def _is_nth(self, day: date, wanted: frozenset[int | str]) -> bool:
        return (day.day - 1) // 7 + 1 in wanted or (LAST in wanted and day.day > _length(day) - 7)

    def _first_time(self, start: time) -> time | None:
        for hour in self.hours[bisect_left(self.hours, start.hour) :]:
            if hour > start.hour:
                return time(hour, self.minutes[0], self.seconds[0])
            for minute in self.minutes[bisect_left(self.minutes, start.minute) :]:
                if minute > start.minute:
                    return time(hour, minute, self.seconds[0])
                place = bisect_left(self.seconds, start.second)
                if place < len(self.seconds):
                    return time(hour, minute, self.seconds[place])
        return None


@lru_cache(maxsize=4096)
def parse_cron(text: str) -> Fields:
    """Five or six fields (the sixth is the second), or a macro such as @daily.

    With both a day and a weekday given, one of them is enough, as in cron.

    Raises ScheduleError for what cannot be read or never comes.
    """
    expanded, nth = _expand(text)
    minutes, hours, days, months, weekdays, *seconds = expanded
    fields = Fields(
        seconds=_numbers(seconds[0], range(60)) if seconds else (0,),
        minutes=_numbers(minutes, range(60)),
        hours=_numbers(hours, range(24)),
        days=frozenset(_numbers(days, range(1, 32))),
        months=frozenset(_numbers(months, range(1, 13))),
        weekdays=frozenset(_numbers(weekdays, range(7))),
        last_day=LAST in days,
        nth={weekday: frozenset(which) for weekday, which in nth.items()},
        either=days != ["*"] and weekdays != ["*"],
    )
    return _that_comes(fields, text)


@lru_cache(maxsize=4096)
def parse_crontab(text: str) -> Fields:
    """The five fields of Celery's crontab as numbers: both the day and the weekday must match.

    Raises ScheduleError for what cannot be read or never comes.
    """
    expanded, nth = _expand(text)
    if len(expanded) != MINUTES_HOURS_DAYS_MONTHS_WEEKDAYS or nth:
        raise ScheduleError(f"crontab is {text!r}, but must be minute, hour, day, month and weekday")
    minutes, hours, days, months, weekdays = expanded
    fields = Fields(
        seconds=(0,),
        minutes=_numbers(minutes, range(60)),
        hours=_numbers(hours, range(24)),
        days=frozenset(_numbers(days, range(1, 32))),
        months=frozenset(_numbers(months, range(1, 13))),
        weekdays=frozenset(_numbers(weekdays, range(7))),
    )
    return _that_comes(fields, text)


def _expand(text: str) -> tuple[list[list[int | str]], dict[int, set[int | str]]]:
    # croniter draws R at random, and differently on each node.
    if _RANDOM.search(text):
        raise ScheduleError(f"cron is {text!r}, but a random field would differ on each node: use jitter")
    try:
        expanded, nth = croniter.expand(text)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ScheduleError(f"cron is {text!r}, but must be five or six fields, or one of {MACROS}: {error}") from error
    if len(expanded) > MINUTES_HOURS_DAYS_MONTHS_WEEKDAYS + 1:
        raise ScheduleError(f"cron is {text!r}, but a seventh field, for years, is not supported: use start_at and end_at")
    return expanded, nth


def _numbers(values: list[int | str], everything: range) -> tuple[int, ...]:
    if "*" in values:
        return tuple(everything)
    return tuple(sorted({value for value in values if isinstance(value, int)}))


def _that_comes(fields: Fields, text: str) -> Fields:
    if fields.after(datetime(2000, 1, 1)) is None:
        raise ScheduleError(f"cron is {text!r}, but that day never comes")
    return fields


def _length(day: date) -> int:
    return monthrange(day.year, day.month)[1]
