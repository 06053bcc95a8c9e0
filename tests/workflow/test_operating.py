"""What operators do: by code and by plain SQL, while beats run. On each database."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_workflow import DuplicateScheduleError, ScheduleError, ScheduleNotFoundError, Schedules
from celery_workflow.schedules.state import Cause, Outcome
from kombu_sqlqueue.clock import FakeClock

from .conftest import NOON, Beat
from .ticking import AT_NOON, SECOND, ticks


@pytest.mark.parametrize(
    "change",
    [
        "spec = '*/2 * * * *'",
        "timezone = 'Asia/Kathmandu', spec = '47 17 * * *'",
        "kind = 'interval', spec = '120', anchor_at = 0",
        "windows = '[\"12:02-13:00\"]'",
        f"start_at = {NOON + 120 * SECOND}",
    ],
)
def test_a_plain_update_of_when_it_fires_clears_its_next_tick(schedules: Schedules, beat: Beat, change: str):
    schedules.create("each", "tasks.do", "* * * * *")
    beat.sql(f"UPDATE schedule SET {change} WHERE name = 'each'")

    assert schedules.get("each").due_at == 0
    beat.after(0)
    beat.after(60)
    assert beat.messages() == []
    beat.after(60)
    assert ticks(schedules, "each") == [(120, "fired", None)]


def test_a_plain_update_of_what_it_does_leaves_its_next_tick_alone(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60)
    beat.sql("""UPDATE schedule SET task = 'tasks.other', args = '[5]', options = '{"queue": "slow"}' WHERE name = 'each'""")

    assert schedules.get("each").due_at == NOON + 60 * SECOND
    beat.after(60)
    [message] = beat.messages()
    assert (message.task, message.queue, json.loads(message.body)[0]) == ("tasks.other", "slow", [5])


def test_a_plain_update_disables_and_enables(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60)
    beat.sql("UPDATE schedule SET enabled = 0 WHERE name = 'each'")
    beat.after(600)
    assert beat.messages() == []
    beat.sql("UPDATE schedule SET enabled = 1 WHERE name = 'each'")
    beat.after(0)
    assert beat.messages() == []
    beat.after(60)
    assert ticks(schedules, "each") == [(660, "fired", None)]


def test_a_row_may_be_inserted_with_no_more_than_what_it_is_to_do(schedules: Schedules, beat: Beat):
    beat.sql("INSERT INTO schedule (name, task, kind, spec) VALUES ('each', 'tasks.do', 'interval', '60')")
    beat.after(0)
    beat.after(60)

    assert ticks(schedules, "each") == [(60, "fired", None)]


def test_a_trigger_fires_now_and_leaves_the_grid_alone(schedules: Schedules, beat: Beat, clock: FakeClock):
    schedules.create("each", "tasks.do", 60)
    schedules.pause("each")
    clock.advance(timedelta(seconds=30))
    tick = schedules.trigger("each")

    assert [message.task_id for message in beat.messages()] == [tick.task_id]
    assert (tick.cause, tick.outcome) == (Cause.MANUAL, Outcome.FIRED)
    schedules.resume("each")
    beat.after(30)
    assert ticks(schedules, "each") == [(30, "fired", None), (60, "fired", None)]


def test_a_backfill_fires_what_did_not_fire(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", crontab())
    beat.after(180)  # two are missed, the third fires
    assert len(beat.messages()) == 1
    start, end = AT_NOON - timedelta(minutes=2), AT_NOON + timedelta(minutes=3)
    filled = schedules.backfill("each", start, end)

    assert [(tick.tick_at - NOON) // SECOND for tick in filled] == [-120, -60, 0, 60, 120]
    assert len(beat.messages()) == 6
    assert schedules.backfill("each", start, end + timedelta(minutes=1)) == ()
    assert schedules.get("each").next_at == NOON + 240 * SECOND
    with pytest.raises(ScheduleError, match="more than 1000 ticks"):
        schedules.backfill("each", AT_NOON - timedelta(days=1), AT_NOON)


def test_a_backfill_leaves_to_the_beat_what_is_still_to_fire(schedules: Schedules, beat: Beat, clock: FakeClock):
    schedules.create("each", "tasks.do", crontab())
    clock.advance(timedelta(seconds=90))
    filled = schedules.backfill("each", AT_NOON, AT_NOON + timedelta(hours=1))
    beat.after(0)

    assert [tick.tick_at for tick in filled] == [NOON]
    assert ticks(schedules, "each") == [(0, "fired", None), (60, "fired", None)]


def test_an_edit_counts_from_now_and_keeps_what_was(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", crontab())
    beat.after(60)
    schedules.edit("each", schedule=crontab(minute="*/5"), task="tasks.other")
    beat.after(240)

    assert ticks(schedules, "each") == [(60, "fired", None), (300, "fired", None)]
    assert [message.task for message in beat.messages()] == ["tasks.do", "tasks.other"]
    assert schedules.get("each").runs == 2


def test_an_edit_that_makes_no_sense_changes_nothing(schedules: Schedules):
    schedules.create("each", "tasks.do", crontab())
    schedules.create("other", "tasks.do", crontab())
    wrong = [
        {"timezone": "Nowhere"},
        {"colour": "red"},
        {"schedule": "* * *"},
        {"name": "other"},
        {"args": 5},
        {"options": []},
    ]
    for fields in wrong:
        with pytest.raises(ScheduleError):
            schedules.edit("each", **fields)

    assert schedules.get("each").says["timezone"] == "UTC"


def test_names_are_unique_and_those_that_are_not_there_are_told(schedules: Schedules):
    schedules.create("each", "tasks.do", 60)
    with pytest.raises(DuplicateScheduleError, match="'each'"):
        schedules.create("each", "tasks.do", 60)
    with pytest.raises(ScheduleError, match="256 characters"):
        schedules.pause("each", "x" * 256)
    for act in schedules.get, schedules.pause, schedules.resume, schedules.delete, schedules.trigger, schedules.history:
        with pytest.raises(ScheduleNotFoundError, match="'nobody'"):
            act("nobody")


def test_a_deleted_schedule_is_gone_with_its_history(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60)
    beat.after(60)
    schedules.delete("each")
    beat.after(600)
    schedules.create("each", "tasks.do", 60)

    assert len(beat.messages()) == 1
    assert schedules.history("each") == []


def test_all_are_listed_page_by_page(schedules: Schedules):
    names = sorted(f"schedule {number}" for number in range(12))
    for name in names:
        schedules.create(name, "tasks.do", 60)

    assert [each.name for each in schedules] == names
    assert [each.name for each in schedules.list(after=names[3], limit=2)] == names[4:6]


def test_old_ticks_are_forgotten(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60)
    beat.after(60)
    beat.after(86_400)
    assert len(schedules.history("each", 1000)) > 2
    pruned = beat.home.store().prune(older_than=timedelta(hours=1), limit=10)

    assert pruned == 1
    assert all(tick.handled_at > NOON + 60 * SECOND for tick in schedules.history("each", 1000))


def test_lateness_is_that_of_the_longest_due(schedules: Schedules, clock: FakeClock):
    assert schedules.lateness() == timedelta(0)
    schedules.create("each", "tasks.do", 60)
    clock.advance(timedelta(seconds=75))

    assert schedules.lateness() == timedelta(seconds=15)


def test_lateness_can_be_asked_by_the_sql_of_the_page(schedules: Schedules, beat: Beat, app: Celery):
    """By the server's own clock, for which the schedule of this test is months late."""
    if not app.conf.broker_url.startswith("sqlqueue+postgresql"):
        pytest.skip("written for PostgreSQL")
    page = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    [query] = re.findall(r"```sql\n(SELECT .*?);\n```", page, re.DOTALL)
    schedules.create("each", "tasks.do", 60)
    table = beat.home.tables.schedule
    query = query.replace("workflow_schedule", f"{table.schema}.{table.name}")
    [late] = beat.home.database.statement(lambda tx: tx.exec_driver_sql(query).one())

    assert late > 0
