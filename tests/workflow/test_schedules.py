"""When the ticks of a schedule are, and what becomes of those that are late: rules without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_workflow.errors import ScheduleError
from celery_workflow.schedules.definition import Definition, Timetable, due_ticks
from celery_workflow.schedules.zones import SECOND, instant_of, moment_of

START = datetime(2026, 5, 5, 12, tzinfo=UTC)
CREATED = instant_of(START)
MINUTE = timedelta(minutes=1)
US = timedelta(microseconds=1)


def schedule(kind: str, spec: str, **fields: Any) -> tuple[Definition, Timetable]:
    definition = Definition(name="each", task="tasks.do", kind=kind, spec=spec, **fields)  # type: ignore[arg-type]
    return definition, Timetable(definition, created_at=CREATED)


def times(timetable: Timetable, count: int, *, now: datetime = START) -> list[datetime]:
    found = []
    tick = timetable.first(now=instant_of(now))
    while tick is not None and len(found) < count:
        found.append(moment_of(tick))
        tick = timetable.after(tick)
    return found


def minutes(*numbers: float) -> list[datetime]:
    return [START + MINUTE * number for number in numbers]


def test_an_interval_counts_from_its_creation():
    """So it also fires where processes live shorter than the interval."""
    _, timetable = schedule("interval", "600")

    assert times(timetable, 2) == minutes(10, 20)
    assert times(timetable, 2, now=START + 35 * MINUTE) == minutes(40, 50)


def test_an_interval_with_an_anchor_lies_on_that_grid():
    _, timetable = schedule("interval", "600", anchor=START + 3 * MINUTE)

    assert times(timetable, 2) == minutes(3, 13)


def test_an_interval_that_starts_at_a_moment_has_its_first_tick_then():
    _, timetable = schedule("interval", "600", start_at=START + 3 * MINUTE)

    assert times(timetable, 2) == minutes(3, 13)


def test_a_start_in_the_past_brings_no_tick_of_the_past():
    _, timetable = schedule("cron", "*/10 * * * *", start_at=START - timedelta(days=1))

    assert times(timetable, 2) == minutes(10, 20)


def test_an_end_is_the_last_moment_of_a_tick():
    _, timetable = schedule("interval", "600", end_at=START + 20 * MINUTE)

    assert times(timetable, 5) == minutes(10, 20)


def test_a_clocked_schedule_has_one_tick():
    _, timetable = schedule("clocked", "2026-05-05T14:30:00+02:00")

    assert times(timetable, 2) == minutes(30)


def test_a_relative_interval_lies_on_full_hours_of_the_wall_clock():
    _, timetable = schedule("relative", "7200", timezone="Asia/Kathmandu")  # 5:45 ahead

    assert times(timetable, 2, now=START) == minutes(75, 195)


def test_a_relative_interval_of_days_comes_at_midnight_though_a_day_has_23_hours():
    definition = Definition(name="a", task="t", kind="relative", spec="86400", timezone="Europe/Paris")
    timetable = Timetable(definition, created_at=instant_of(datetime(2026, 3, 28, 12, tzinfo=UTC)))

    assert times(timetable, 3, now=datetime(2026, 3, 28, 12, tzinfo=UTC)) == [
        datetime(2026, 3, 28, 23, tzinfo=UTC),
        datetime(2026, 3, 29, 22, tzinfo=UTC),
        datetime(2026, 3, 30, 22, tzinfo=UTC),
    ]


def test_a_solar_schedule_comes_once_a_day_and_is_the_same_when_asked_again():
    pytest.importorskip("ephem")
    _, timetable = schedule("solar", "sunset 48.2 16.4")
    found = times(timetable, 30)

    assert all(
        timedelta(hours=23, minutes=55) < later - earlier < timedelta(hours=24, minutes=5)
        for earlier, later in pairwise(found)
    )
    assert all(17 <= each.hour <= 19 for each in found)


def test_a_sun_that_does_not_set_is_waited_for():
    pytest.importorskip("ephem")
    _, timetable = schedule("solar", "sunset 78.2 15.6")

    assert times(timetable, 1)[0].month in (8, 9)


def test_windows_leave_ticks_out():
    _, timetable = schedule("cron", "*/30 * * * *", windows=["Mon-Fri 09:00-10:00"], timezone="Europe/Paris")

    assert times(timetable, 4, now=datetime(2026, 5, 8, 7, 15, tzinfo=UTC)) == [
        datetime(2026, 5, 8, 7, 30, tzinfo=UTC),  # Friday
        datetime(2026, 5, 11, 7, 0, tzinfo=UTC),
        datetime(2026, 5, 11, 7, 30, tzinfo=UTC),
        datetime(2026, 5, 12, 7, 0, tzinfo=UTC),
    ]


def test_a_window_may_pass_midnight():
    _, timetable = schedule("cron", "0 * * * *", windows=["22:00-01:00"])

    assert [each.hour for each in times(timetable, 4)] == [22, 23, 0, 22]


def test_windows_that_no_tick_meets_are_no_endless_search():
    _, timetable = schedule("cron", "0 12 * * *", windows=["13:00-14:00"])

    assert times(timetable, 1) == []


def test_jitter_is_the_same_on_every_node_and_within_its_bound():
    _, timetable = schedule("interval", "60", jitter=timedelta(seconds=30))
    _, other = schedule("interval", "60", jitter=timedelta(seconds=30))
    ticks = [instant_of(each) for each in times(timetable, 50)]
    delays = [timetable.due(tick) - tick for tick in ticks]

    assert delays == [other.due(tick) - tick for tick in ticks]
    assert all(0 <= delay <= 30 * SECOND for delay in delays)
    assert len(set(delays)) > 40


def became(definition: Definition, timetable: Timetable, first: datetime, now: datetime) -> tuple[list[datetime], list[Any]]:
    due = due_ticks(definition, timetable, instant_of(first), instant_of(now))
    return [moment_of(tick) for tick in due.fire], [(moment_of(tick), reason) for tick, reason in due.missed]


def test_one_of_several_missed_ticks_is_fired_and_the_others_are_recorded():
    each_minute = schedule("cron", "* * * * *")

    fired, missed = became(*each_minute, START + MINUTE, START + 5.5 * MINUTE)

    assert fired == minutes(5)
    assert missed == [(minute, "newer") for minute in minutes(1, 2, 3, 4)]


def test_a_tick_is_never_fired_before_its_moment():
    each_minute = schedule("cron", "* * * * *")

    assert became(*each_minute, START + MINUTE, START + MINUTE - US) == ([], [])
    assert became(*each_minute, START + MINUTE, START + MINUTE) == (minutes(1), [])


def test_skip_lets_pass_what_is_later_than_a_minute():
    each_hour = schedule("cron", "0 * * * *", misfire="skip")

    assert became(*each_hour, START, START + MINUTE)[0] == [START]
    assert became(*each_hour, START, START + MINUTE + US) == ([], [(START, "late")])


def test_the_grace_says_how_late_a_tick_may_be():
    half_an_hour = schedule("cron", "0 12 * * *", misfire_grace=timedelta(minutes=30))

    assert became(*half_an_hour, START, START + 30 * MINUTE)[0] == [START]
    assert became(*half_an_hour, START, START + 30 * MINUTE + US)[0] == []


def test_a_tick_of_a_month_ago_is_not_caught_up_unless_told():
    monthly = schedule("cron", "0 12 5 * *")
    patient = schedule("cron", "0 12 5 * *", misfire_grace=timedelta(days=30))

    assert became(*monthly, START, START + timedelta(days=2))[0] == []
    assert became(*patient, START, START + timedelta(days=2))[0] == [START]


def test_fire_all_catches_up_to_its_limit():
    each_minute = schedule("cron", "* * * * *", misfire="fire_all", misfire_limit=3)

    fired, missed = became(*each_minute, START + MINUTE, START + 5 * MINUTE)

    assert fired == minutes(3, 4, 5)
    assert [minute for minute, _ in missed] == minutes(1, 2)


def test_a_missed_tick_does_not_fire_outside_its_window():
    early = schedule("cron", "*/15 * * * *", windows=["10:00-13:00"])

    fired, missed = became(*early, START + 45 * MINUTE, START + 90 * MINUTE)

    assert (fired, missed) == ([], [(START + 45 * MINUTE, "outside the windows by now")])


def test_years_of_missed_ticks_are_told_in_few_words():
    each_second = schedule("interval", "1")

    fired, missed = became(*each_second, START + timedelta(seconds=1), START + timedelta(days=700))

    assert fired == [START + timedelta(days=700)]
    assert len(missed) == 100
    assert missed[0][1] == f"newer, and all since {(START + timedelta(seconds=1)).isoformat()}"


@given(
    kind=st.sampled_from([("interval", "7.5"), ("cron", "*/7 * * * *"), ("cron", "0 3 * * *"), ("relative", "3600")]),
    jitter=st.integers(0, 120),
    ago=st.integers(0, 20_000),
    later=st.integers(0, 40_000),
    count=st.integers(1, 50),
)
@settings(max_examples=200, deadline=None)
def test_the_newest_ticks_are_those_of_a_plain_walk(kind, jitter, ago, later, count):
    _, timetable = schedule(*kind, jitter=timedelta(seconds=jitter), timezone="Europe/Paris")
    first = timetable.after(CREATED - ago * SECOND)
    now = CREATED + later * SECOND
    walked = []
    tick = first
    while tick is not None and timetable.due(tick) <= now:
        walked.append(tick)
        tick = timetable.after(tick)

    assert timetable.newest(first, now, count) == walked[-count:]


@given(
    misfire=st.sampled_from(["skip", "fire_once", "fire_all"]),
    grace=st.none() | st.integers(0, 10_000),
    limit=st.integers(1, 20),
    late=st.integers(0, 20_000),
)
@settings(max_examples=200, deadline=None)
def test_each_due_tick_is_fired_or_missed_and_none_is_both(misfire, grace, limit, late):
    given_grace = None if grace is None else timedelta(seconds=grace)
    definition, timetable = schedule("interval", "60", misfire=misfire, misfire_grace=given_grace, misfire_limit=limit)
    first = CREATED + 60 * SECOND
    due = due_ticks(definition, timetable, first, first + late * SECOND)
    missed = [tick for tick, _ in due.missed]

    assert not set(due.fire) & set(missed)
    assert len(due.fire) <= (limit if misfire == "fire_all" else 1)
    # What is older than the recorded ones is told with the oldest of these.
    ticks = range(first, first + late * SECOND + 1, 60 * SECOND)
    assert sorted([*due.fire, *missed]) == list(ticks)[-len(due.fire) - len(missed) :]
    assert due.next_tick == first + (late // 60 + 1) * 60 * SECOND


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "name is ''"),
        ({"task": "t" * 256}, "1 to 255 characters"),
        ({"spec": " ".join(["*/1"] * 70)}, "spec is"),
        ({"kind": "daily"}, "kind is 'daily', but must be one of cron"),
        ({"kind": "interval", "spec": "0"}, "0.001 or more"),
        ({"kind": "interval", "spec": "soon"}, "interval is 'soon'"),
        ({"kind": "interval", "spec": "nan"}, "interval is 'nan'"),
        ({"kind": "clocked", "spec": "2026-05-05T14:30:00"}, "has no time zone"),
        ({"kind": "clocked", "spec": "tomorrow"}, "clocked is 'tomorrow'"),
        ({"kind": "solar", "spec": "moonrise 1 2"}, "solar event is 'moonrise'"),
        ({"kind": "solar", "spec": "sunset 91 2"}, "is no place"),
        ({"timezone": "CET/X"}, "timezone is 'CET/X'"),
        ({"misfire": "always"}, "misfire is 'always'"),
        ({"overlap": "never"}, "overlap is 'never'"),
        ({"max_runs": 0}, "max_runs is 0"),
        ({"jitter": timedelta(seconds=-1)}, "jitter is"),
        ({"windows": ["office hours"]}, "window is 'office hours'"),
        ({"windows": ["25:00-26:00"]}, "window is"),
        ({"when": "lambda: 1"}, "when is 'lambda: 1'"),
        ({"start_at": datetime(2026, 1, 1)}, "has no time zone"),
        ({"dst_missing": "never"}, "dst_missing is 'never'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(changes: dict[str, Any], says: str):
    with pytest.raises(ScheduleError) as refused:
        Definition(**({"name": "each", "task": "tasks.do", "kind": "cron", "spec": "* * * * *"} | changes))

    assert says in str(refused.value)
