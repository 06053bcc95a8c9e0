"""Cron in every zone and at both edges of summer time, against someone who watches the clock minute by minute."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import pytest
from croniter import croniter
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_workflow.errors import ScheduleError
from celery_workflow.schedules.cron import parse_cron, parse_crontab
from celery_workflow.schedules.timing import Cron
from celery_workflow.schedules.zones import Zone, instant_of, moment_of

from .walk import clock_changes, fired, shown

AROUND = timedelta(hours=30)

#: Specs that name their hours, each with what it says in Python.
NAMED_HOURS: dict[str, Callable[[datetime], bool]] = {
    "30 2 * * *": lambda w: (w.hour, w.minute) == (2, 30),
    "0 0 * * *": lambda w: (w.hour, w.minute) == (0, 0),
    "*/20 0-3 * * *": lambda w: w.hour <= 3 and w.minute % 20 == 0,
    "15 1,3 * * *": lambda w: w.hour in (1, 3) and w.minute == 15,
    "59 23 * * *": lambda w: (w.hour, w.minute) == (23, 59),
}
#: Those that are tried with each rule for repeated and missing hours.
FOR_EACH_RULE = ("30 2 * * *", "*/20 0-3 * * *")
#: Specs for every hour.
EVERY_HOUR: dict[str, Callable[[datetime], bool]] = {
    "0 * * * *": lambda w: w.minute == 0,
    "*/15 * * * *": lambda w: w.minute % 15 == 0,
    "7 * * * *": lambda w: w.minute == 7,
}
#: Clocks that were set in an unusual way.
ODD = [
    ("Pacific/Apia", 2011),  # a whole day is missing
    ("Australia/Lord_Howe", 2026),  # half an hour
    ("Antarctica/Troll", 2026),  # two hours
    ("America/Sao_Paulo", 2018),  # at midnight
    ("Asia/Beirut", 2022),
    ("Africa/Casablanca", 2026),  # for Ramadan
    ("America/Caracas", 2016),
    ("Asia/Pyongyang", 2018),
    ("Europe/Lisbon", 1992),
    ("Europe/Dublin", 2026),  # winter is the exception
    ("Europe/Volgograd", 2018),
    ("Pacific/Kwajalein", 1993),
]


def cron(text: str, zone: str, **rules: str) -> Cron:
    return Cron(parse_cron(text), Zone.named(zone), **rules)  # type: ignore[arg-type]


def ticks(spec: Cron, start: datetime, end: datetime) -> list[datetime]:
    """All ticks after start, up to end."""
    found = []
    at = spec.after(instant_of(start))
    while at is not None and moment_of(at) <= end:
        found.append(moment_of(at))
        at = spec.after(at)
    return found


@cache
def different_zones(year: int) -> list[str]:
    """One zone of each set whose clocks are set at the same moments of the year."""
    found: dict[tuple[object, ...], str] = {}
    for name in sorted(available_timezones() - {"localtime", "Factory"}):
        changes = _cheap_changes(name, year)
        if changes:
            found.setdefault((*changes,), name)
    return list(found.values())


def _cheap_changes(name: str, year: int) -> list[object]:
    zone = ZoneInfo(name)
    days = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=number) for number in range(366)]
    offsets = [day.astimezone(zone).utcoffset() for day in days]
    return [(day, offset) for day, offset, before in zip(days[1:], offsets[1:], offsets, strict=False) if offset != before]


def check_around_changes(name: str, year: int) -> int:
    changes = clock_changes(name, year)
    for change in changes:
        start, end = change - AROUND, change + AROUND
        # The day after too, so that what is shown once more is known.
        minutes = shown(name, start, end + AROUND)
        for text, matches in NAMED_HOURS.items():
            for repeated in ("first", "last", "both") if text in FOR_EACH_RULE else ("first",):
                for missing in ("shift", "skip") if text in FOR_EACH_RULE else ("shift",):
                    expected = [at for at in fired(minutes, matches, repeated=repeated, missing=missing) if at <= end]
                    assert ticks(cron(text, name, repeated=repeated, missing=missing), start, end) == expected, text
        for text, matches in EVERY_HOUR.items():
            expected = [at for at in fired(minutes, matches, repeated="both", missing="skip") if at <= end]
            assert ticks(cron(text, name), start, end) == expected, text
    return len(changes)


@pytest.mark.parametrize(("name", "year"), ODD, ids=lambda value: str(value))
def test_cron_follows_clocks_that_are_set_in_unusual_ways(name: str, year: int):
    assert check_around_changes(name, year)


def test_cron_follows_every_way_in_which_clocks_are_set_in_a_year():
    """Each set of zones that tzdata knows and that sets its clocks alike."""
    zones = different_zones(2026)

    assert len(zones) > 15
    assert sum(check_around_changes(name, 2026) for name in zones) > 30


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("year", range(1975, 2037))
def test_cron_follows_every_clock_in_every_year(year: int):
    for name in different_zones(year):
        check_around_changes(name, year)


def test_a_daily_tick_comes_on_each_day_of_a_year_however_clocks_are_set():
    for name in different_zones(2026):
        check_each_day(name)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(available_timezones() - {"localtime", "Factory"}))
def test_a_daily_tick_comes_on_each_day_of_a_year_in_each_zone(name: str):
    check_each_day(name)


def check_each_day(name: str) -> None:
    """Once a day, at the wall time if the clock shows it."""
    at = Zone.named(name).first(datetime(2026, 1, 1))
    spec = cron("30 2 * * *", name)
    days: list[date] = []
    for _ in range(365):
        following = spec.after(at)
        assert following is not None
        at = following
        wall = Zone.named(name).wall(at)
        assert (wall.hour, wall.minute) == (2, 30) or not Zone.named(name).shows(wall.replace(hour=2, minute=30))
        days.append(wall.date())
    assert days == [date(2026, 1, 1) + timedelta(days=number) for number in range(365)]


@given(
    text=st.sampled_from([*NAMED_HOURS, *EVERY_HOUR, "0 12 29 2 *", "*/7 3 * * mon-fri", "0 3 1 * *", "5 4 * * sun"]),
    zone=st.sampled_from(["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu"]),
    at=st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC)),
    part=st.floats(0, 1, exclude_max=True),
    repeated=st.sampled_from(["first", "last", "both"]),
)
@settings(max_examples=300, deadline=None)
def test_the_next_tick_is_the_same_from_every_moment_before_it(text, zone, at, part, repeated):
    """Nothing lies between, and asking earlier or later does not move it."""
    spec = cron(text, zone, repeated=repeated)
    instant = instant_of(at)
    following = spec.after(instant)

    assert following is not None
    assert following > instant
    assert spec.after(instant + int((following - 1 - instant) * part)) == following


@given(
    minute=st.sampled_from(["*", "0", "*/7", "5,10", "58-59"]),
    hour=st.sampled_from(["*", "0", "*/5", "1-3", "23"]),
    day=st.sampled_from(["*", "1", "l", "31", "*/9", "13,29"]),
    month=st.sampled_from(["*", "2", "jan-mar", "12"]),
    weekday=st.sampled_from(["*", "0", "mon-fri", "7", "5#2", "l3", "sat,sun"]),
    second=st.sampled_from(["", " 0", " */20", " 59"]),
    at=st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)),
)
@settings(max_examples=200, deadline=None)
def test_cron_text_means_what_croniter_says_where_no_clock_is_set(minute, hour, day, month, weekday, second, at):
    text = f"{minute} {hour} {day} {month} {weekday}{second}"
    # Days that never come, and what croniter cannot answer: a day of the month together with, say, the second Friday.
    assume(not (month == "2" and day == "31" and weekday == "*"))
    assume(day == "*" or weekday not in ("5#2", "l3"))
    # croniter 6 has no 7 for a Sunday where there are seconds.
    assume(not (weekday == "7" and second))
    expected = croniter(text, at).get_next(datetime)

    assert parse_cron(text).after(at) == expected


def test_a_day_and_a_weekday_are_one_enough_in_cron_and_both_needed_in_celerys_crontab():
    start = datetime(2026, 1, 1)

    assert parse_cron("0 0 13 * 5").after(start) == datetime(2026, 1, 2)
    assert parse_crontab("0 0 13 * 5").after(start) == datetime(2026, 2, 13)


@pytest.mark.parametrize(
    ("macro", "following"),
    [
        ("@yearly", datetime(2027, 1, 1)),
        ("@annually", datetime(2027, 1, 1)),
        ("@monthly", datetime(2026, 6, 1)),
        ("@weekly", datetime(2026, 5, 10)),
        ("@daily", datetime(2026, 5, 6)),
        ("@midnight", datetime(2026, 5, 6)),
        ("@hourly", datetime(2026, 5, 5, 13)),
    ],
)
def test_macros(macro: str, following: datetime):
    assert parse_cron(macro).after(datetime(2026, 5, 5, 12, 30)) == following


@pytest.mark.parametrize(
    "text", ["", "* * * *", "61 * * * *", "R * * * *", "H * * * *", "@reboot", "0 0 30 2 *", "x", "* * * * * * 2030"]
)
def test_cron_text_that_cannot_be_is_refused(text: str):
    with pytest.raises(ScheduleError, match="cron is"):
        parse_cron(text)


def test_an_unknown_zone_is_refused_by_name():
    with pytest.raises(ScheduleError, match="Mars/Base"):
        Zone.named("Mars/Base")
