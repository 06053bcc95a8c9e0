"""beat_schedule and the rows: what the configuration says, and what operators have changed since."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_workflow import ScheduleError, Schedules
from celery_workflow.schedules.converting import spec_of
from celery_workflow.schedules.cron import parse_crontab

from .conftest import NOON, Beat

DATABASES = ["sqlite", "postgresql"]
SECOND = 1_000_000
TWO = {"a": {"task": "tasks.a", "schedule": 60.0, "args": (1,)}, "b": {"task": "tasks.b", "schedule": crontab(minute=5)}}


def acts(changes: Any) -> list[tuple[str, str]]:
    return [(str(change.act), change.name) for change in changes]


def test_entries_become_rows_and_a_second_sync_changes_nothing(schedules: Schedules):
    assert acts(schedules.sync(TWO)) == [("create", "a"), ("create", "b")]
    assert schedules.sync(TWO) == []
    assert schedules.get("a").says["spec"] == "60"
    assert schedules.get("b").says["spec"] == "5 * * * *"
    assert schedules.get("b").origin == "config:proj"


def test_a_sync_that_changes_nothing_leaves_the_next_tick_where_it_is(schedules: Schedules, beat: Beat):
    """So an interval longer than the life of a beat fires all the same."""
    schedules.sync({"a": {"task": "tasks.a", "schedule": 600}})
    for _ in range(10):
        beat.after(60)
        schedules.sync({"a": {"task": "tasks.a", "schedule": 600}})

    assert schedules.get("a").runs == 1


def test_a_changed_entry_changes_its_row(schedules: Schedules, beat: Beat):
    schedules.sync(TWO)
    beat.after(30)
    [change] = schedules.sync({**TWO, "a": {"task": "tasks.a", "schedule": 45.0, "args": (2,)}})

    assert change.fields == {"spec": ("60", "45"), "args": ([1], [2])}
    assert schedules.get("a").next_at == NOON + 45 * SECOND


def test_an_entry_that_is_gone_is_disabled_and_comes_back_with_all_it_had(schedules: Schedules, beat: Beat):
    schedules.sync(TWO)
    schedules.edit("a", args=[9])
    schedules.create("api", "tasks.c", 60)
    assert acts(schedules.sync({"b": TWO["b"]})) == [("disable", "a")]
    assert schedules.sync({"b": TWO["b"]}) == []
    beat.after(60)
    assert [message.task for message in beat.messages()] == ["tasks.c"]
    assert acts(schedules.sync(TWO)) == [("change", "a")]
    beat.after(60)
    assert [message.task for message in beat.messages()].count("tasks.a") == 1
    assert schedules.get("a").says["args"] == [9]


def test_an_operators_edits_survive_a_sync_and_a_reset_takes_them_back(schedules: Schedules, beat: Beat):
    schedules.sync(TWO)
    schedules.edit("a", schedule=30)
    beat.sql("UPDATE schedule SET task = 'tasks.mine' WHERE name = 'a'")
    changed = {**TWO, "a": {"task": "tasks.a", "schedule": 45.0, "args": (2,)}}
    [change] = schedules.sync(changed)

    assert (change.fields, sorted(change.kept)) == ({"args": ([1], [2])}, ["spec", "task"])
    says = schedules.get("a").says
    assert (says["spec"], says["task"], says["args"]) == ("30", "tasks.mine", [2])
    schedules.sync(changed, reset=True)
    says = schedules.get("a").says
    assert (says["spec"], says["task"]) == ("45", "tasks.a")


def test_a_pause_survives_a_sync_and_even_a_reset(schedules: Schedules, beat: Beat):
    schedules.sync(TWO)
    schedules.pause("a", "why")
    schedules.sync({**TWO, "a": {"task": "tasks.a", "schedule": 45.0}}, reset=True)
    beat.after(600)

    assert schedules.get("a").note == "why"
    assert "tasks.a" not in {message.task for message in beat.messages()}


def test_a_dry_run_shows_and_changes_nothing(schedules: Schedules):
    assert acts(schedules.sync(TWO, dry_run=True)) == [("create", "a"), ("create", "b")]
    assert list(schedules) == []


def test_an_entry_that_cannot_be_stored_stops_no_other(schedules: Schedules, caplog: pytest.LogCaptureFixture):
    bad = {
        "lazy": {"task": "t", "schedule": 1, "args": [BeatLazyFunc(print)]},
        "typo": {"task": "t", "schedule": 1, "jiter": 2},
        "none": {"task": "t"},
        "bare": {"task": "t", "schedule": 1, "args": 5},
        "text": {"task": "t", "schedule": 1, "args": "tea"},
        "list": {"task": "t", "schedule": 1, "options": [("queue", "slow")]},
    }
    with caplog.at_level(logging.ERROR):
        assert acts(schedules.sync({**TWO, **bad})) == [("create", "a"), ("create", "b")]
    assert all(name in caplog.text for name in ("BeatLazyFunc", "jiter", "has no schedule"))
    assert all(said in caplog.text for said in ("args is 5", "args is 'tea'", "options is [['queue', 'slow']]"))


def test_an_entry_may_have_our_rules_too(schedules: Schedules):
    entry = {"task": "t", "schedule": "0 9 * * mon-fri", "timezone": "Europe/Vienna", "overlap": "skip", "max_runs": 3}
    schedules.sync({"a": {**entry, "jitter": timedelta(seconds=5)}})
    definition = schedules.get("a").definition

    assert (definition.kind, definition.timezone, definition.overlap) == ("cron", "Europe/Vienna", "skip")
    assert (definition.max_runs, definition.jitter) == (3, timedelta(seconds=5))


def test_two_apps_on_one_database_leave_each_others_entries_alone(schedules: Schedules, app: Celery):
    schedules.sync(TWO)
    app.main = "other"
    assert acts(schedules.sync({"c": TWO["a"]})) == [("create", "c")]


def test_an_entry_takes_over_a_row_of_its_name_and_its_choices_stay(schedules: Schedules):
    schedules.create("a", "tasks.mine", 30)
    assert acts(schedules.sync(TWO)) == [("adopt", "a"), ("create", "b")]

    assert schedules.get("a").says["task"] == "tasks.mine"
    assert schedules.get("a").origin == "config:proj"
    assert schedules.sync(TWO) == []


def test_a_change_of_the_apps_zone_reckons_anew(schedules: Schedules, app: Celery, beat: Beat):
    entries = {"a": {"task": "t", "schedule": crontab(hour=12, minute=30)}}
    schedules.sync(entries)
    app.conf.timezone = "Asia/Almaty"
    schedules.sync(entries)
    beat.after(86_400)

    assert schedules.get("a").says["timezone"] == "Asia/Almaty"
    assert schedules.get("a").runs == 1


# -- every class of schedule ----------------------------------------------------------------


@pytest.fixture
def plain() -> Celery:
    return Celery("plain", broker="memory://", set_as_current=False)


@pytest.mark.parametrize(
    ("when", "kind", "spec"),
    [
        (30, "interval", "30"),
        (0.5, "interval", "0.5"),
        (timedelta(hours=1), "interval", "3600"),
        (schedule(90), "interval", "90"),
        (schedule(timedelta(days=1), relative=True), "relative", "86400"),
        (crontab(), "crontab", "* * * * *"),
        (crontab(minute="*/15", hour="9-17", day_of_week="mon-fri"), "crontab", "0,15,30,45 9-17 * * 1-5"),
        (crontab(minute=[1, 2, 3, 9], hour={0}, month_of_year="jan"), "crontab", "1-3,9 0 * 1 *"),
        (crontab(0, 0, day_of_month="1-7", day_of_week="sunday"), "crontab", "0 0 1-7 * 0"),
        (solar("sunset", -37.8, 144.9), "solar", "sunset -37.8 144.9"),
        ("@daily", "cron", "@daily"),
        (datetime(2030, 1, 1, tzinfo=UTC), "clocked", "2030-01-01T00:00:00+00:00"),
    ],
)
def test_every_class_of_schedule_becomes_a_row(plain: Celery, when: Any, kind: str, spec: str):
    assert spec_of(plain, "a", when)[:2] == (kind, spec)


def test_relative_in_an_entry_is_that_of_its_interval(plain: Celery):
    assert spec_of(plain, "a", 3600, relative=True)[0] == "relative"


def test_a_schedule_that_somebody_programmed_is_refused_by_name(plain: Celery):
    class Odd(schedule):
        pass

    with pytest.raises(ScheduleError, match="a Odd cannot be stored"):
        spec_of(plain, "a", Odd(5))


@pytest.mark.parametrize(
    ("settings", "zone"),
    [
        ({}, "UTC"),
        ({"timezone": "Europe/Paris"}, "Europe/Paris"),
        ({"timezone": "Asia/Almaty", "enable_utc": False}, "Asia/Almaty"),
    ],
)
def test_the_zone_is_the_apps_unless_the_entry_has_one(plain: Celery, settings: dict[str, Any], zone: str):
    plain.conf.update(settings)

    assert spec_of(plain, "a", crontab())[2] == zone


@given(
    minute=st.sampled_from(["*", "*/7", "0", "3-9", "1,2,58"]),
    hour=st.sampled_from(["*", "*/5", "0", "22-23"]),
    weekday=st.sampled_from(["*", "mon", "1-5", "sat,sun", "*/2"]),
    day=st.sampled_from(["*", "1", "*/10", "28-31"]),
    month=st.sampled_from(["*", "2", "jan-mar", "*/5"]),
    at=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
)
@settings(max_examples=100, deadline=None)
def test_a_crontab_fires_when_celerys_would(minute, hour, weekday, day, month, at):
    """Its own arithmetic, asked in UTC."""
    app = Celery("plain", set_as_current=False)
    at = at.replace(microsecond=0)
    theirs = crontab(minute, hour, weekday, day, month, nowfun=lambda: at.replace(tzinfo=UTC), app=app)
    expected = at.replace(tzinfo=UTC) + theirs.remaining_estimate(at.replace(tzinfo=UTC))
    ours = parse_crontab(spec_of(app, "a", crontab(minute, hour, weekday, day, month))[1]).after(at)

    assert ours is not None
    assert ours.replace(tzinfo=UTC) == expected
