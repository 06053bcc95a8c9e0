"""Firing: a tick, its message and the next tick are one transaction. On each database."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_workflow import Definition, DuplicateScheduleError, ScheduleError, ScheduleNotFoundError, Schedules
from celery_workflow.firing import Firing
from celery_workflow.home import Home
from celery_workflow.signals import schedule_fired, schedule_misfired, schedule_skipped
from celery_workflow.state import Cause, Outcome
from celery_workflow.zones import moment_of
from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.sql import postgresql

from ..celery.workers import eventually
from .conftest import NOON, Beat

SECOND = 1_000_000
AT_NOON = moment_of(NOON)


def ticks(schedules: Schedules, name: str) -> list[tuple[float, str, str | None]]:
    """Seconds after noon, outcome and reason of each tick, the earliest first."""
    found = [((t.tick_at - NOON) / SECOND, str(t.outcome), t.reason) for t in schedules.history(name, 1000)]
    return list(reversed(found))


def test_a_due_schedule_sends_its_task_once_and_goes_on_to_the_next_tick(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60, args=[1], kwargs={"x": 2})

    assert beat.after(59.999) == 0
    assert beat.messages() == []
    assert beat.after(0.001) == 1
    assert beat.after(0) == 0
    [message] = beat.messages()
    assert message.task == "tasks.do"
    assert json.loads(message.body)[:2] == [[1], {"x": 2}]
    assert ticks(schedules, "each") == [(60, "fired", None)]
    after = schedules.get("each")
    assert (after.last_at, after.next_at) == (NOON + 60 * SECOND, NOON + 120 * SECOND)
    assert (after.runs, after.late_for, after.last_task_id) == (1, 0, message.task_id)


def test_what_the_task_is_sent_with(schedules: Schedules, beat: Beat):
    """Queue, priority, headers and expiry are the schedule's; the marks are those of Celery and django-celery-beat."""
    options = {"queue": "reports", "priority": 7, "headers": {"tenant": "x"}, "expires": 30}
    schedules.create("each", "tasks.do", 60, options=options)
    beat.after(60)

    [message] = beat.messages()
    assert (message.queue, message.priority) == ("reports", 7)
    headers = json.loads(message.envelope)["headers"]
    assert headers["tenant"] == "x"
    assert headers["expires"] is not None
    assert headers["celery_beat_task"] is True
    assert headers["periodic_task_name"] == "each"
    assert headers["periodic_task_tick"] == (AT_NOON + timedelta(minutes=1)).isoformat()


def test_arguments_may_be_what_celerys_json_takes(schedules: Schedules, beat: Beat):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    schedules.create("each", "tasks.do", 60, args=[moment], kwargs={"since": moment})
    beat.after(60)

    args, kwargs, _ = json.loads(beat.messages()[0].body)
    assert args[0]["__type__"] == kwargs["since"]["__type__"] == "datetime"
    with pytest.raises(ScheduleError, match="args of 'other' cannot be stored"):
        schedules.create("other", "tasks.do", 60, args=[object()])


def test_the_id_of_a_task_follows_from_its_tick(schedules: Schedules, beat: Beat):
    schedules.create("a", "tasks.do", 60)
    schedules.create("b", "tasks.do", 60)
    beat.after(60)
    beat.after(60)
    ids = [message.task_id for message in beat.messages()]

    assert len(set(ids)) == 4
    assert {tick.task_id for name in "ab" for tick in schedules.history(name)} == set(ids)


@pytest.fixture
def failing(app: Celery) -> set[str]:
    """Sending the tasks of these names fails after they were stored."""
    names: set[str] = set()

    class Failing(app.Task):  # type: ignore[misc,name-defined]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            sent = super().apply_async(*args, **options)
            if self.name in names:
                raise RuntimeError(f"{self.name} cannot be sent")
            return sent

    @app.task(name="tasks.bad", base=Failing, shared=False)
    def bad() -> None: ...

    return names


def test_an_error_in_one_schedule_stops_no_other_and_loses_no_tick(schedules: Schedules, beat: Beat, failing: set[str]):
    for number in range(5):
        schedules.create(f"good {number}", "tasks.do", 60)
        schedules.create(f"bad {number}", "tasks.bad", 60)
    failing.add("tasks.bad")

    beat.after(60)
    assert [message.task for message in beat.messages()] == ["tasks.do"] * 5
    assert schedules.get("bad 0").error == "RuntimeError: tasks.bad cannot be sent"
    assert schedules.history("bad 0") == []
    failing.clear()
    beat.after(29)
    assert len(beat.messages()) == 5
    beat.after(1)
    assert [message.task for message in beat.messages()[5:]] == ["tasks.bad"] * 5
    assert ticks(schedules, "bad 0") == [(60, "fired", None)]
    assert schedules.get("bad 0").error is None


def test_a_node_that_failed_takes_nothing_back_of_what_another_fired(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60)
    seen = schedules.get("each")
    beat.after(60)
    beat.home.store().blame(seen, "too late", again_in=timedelta(seconds=30))

    assert schedules.get("each").error is None
    assert schedules.get("each").due_at == NOON + 120 * SECOND


def test_nonsense_in_a_row_stops_no_other_and_heals_with_it(schedules: Schedules, beat: Beat):
    schedules.create("good", "tasks.do", 60)
    schedules.create("bad", "tasks.do", "* * * * *")
    beat.sql("UPDATE schedule SET spec = 'every day' WHERE name = 'bad'")

    beat.after(60)
    assert len(beat.messages()) == 1
    assert schedules.get("bad").error.startswith("ScheduleError: cron is 'every day'")
    beat.after(3600)
    assert schedules.history("bad") == []
    beat.sql("UPDATE schedule SET spec = '* * * * *' WHERE name = 'bad'")
    beat.after(0)
    beat.after(60)
    assert [outcome for _, outcome, _ in ticks(schedules, "bad")] == ["fired"]
    assert schedules.get("bad").error is None


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


def test_what_was_due_while_paused_never_fires(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", crontab(), misfire="fire_all")
    schedules.pause("each", "until the audit is over")
    assert schedules.get("each").note == "until the audit is over"

    beat.after(600)
    schedules.resume("each")
    beat.after(0)
    assert schedules.history("each") == []
    assert schedules.get("each").note is None
    beat.after(60)
    assert ticks(schedules, "each") == [(660, "fired", None)]


def test_after_an_outage_the_newest_tick_fires_and_the_others_are_recorded(schedules: Schedules, beat: Beat):
    """Nobody ran for five minutes."""
    schedules.create("once", "tasks.do", crontab())
    schedules.create("all", "tasks.do", crontab(), misfire="fire_all")
    schedules.create("late", "tasks.do", crontab(hour="12", minute="1"), misfire="skip")
    beat.after(300)

    assert ticks(schedules, "once") == [(60 * n, "misfired", "newer") for n in (1, 2, 3, 4)] + [(300, "fired", None)]
    assert ticks(schedules, "all") == [(60 * n, "fired", None) for n in (1, 2, 3, 4, 5)]
    assert ticks(schedules, "late") == [(60, "misfired", "late")]
    assert len(beat.messages()) == 6


def test_overlap_skip_waits_for_the_task_before_however_long_it_takes(schedules: Schedules, beat: Beat):
    """At most one waits when no worker is up."""
    schedules.create("each", "tasks.do", 60, overlap="skip")
    for _ in range(5):
        beat.after(60)
    assert len(beat.messages()) == 1
    beat.end_tasks()
    beat.after(60)

    assert len(beat.messages()) == 1
    skipped = [(60 * n, "skipped", "overlap") for n in (2, 3, 4, 5)]
    assert ticks(schedules, "each") == [(60, "fired", None), *skipped, (360, "fired", None)]


def test_overlap_sees_a_retry_of_the_task(schedules: Schedules, beat: Beat):
    """Another message, but the same task."""
    schedules.create("each", "tasks.do", 60, overlap="skip")
    beat.after(60)
    [message] = beat.messages()
    beat.end_tasks()
    beat.app.send_task("tasks.do", task_id=message.task_id, countdown=600)
    beat.after(60)

    assert [outcome for _, outcome, _ in ticks(schedules, "each")] == ["fired", "skipped"]


def test_overlap_queue_one_fires_one_when_the_task_before_ends(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60, overlap="queue_one")
    for _ in range(3):
        beat.after(60)
    assert len(beat.messages()) == 1
    beat.end_tasks()
    beat.after(1)

    assert len(beat.messages()) == 1
    assert ticks(schedules, "each") == [(60, "fired", None), (120, "fired", None), (180, "skipped", "overlap")]
    beat.end_tasks()
    beat.after(59)
    assert ticks(schedules, "each")[3:] == [(240, "fired", None)]


def test_a_last_tick_that_is_queued_still_fires(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60, overlap="queue_one", end_at=AT_NOON + timedelta(seconds=120))
    beat.after(60)
    beat.after(60)
    beat.after(600)
    beat.end_tasks()
    beat.after(1)

    assert [outcome for _, outcome, _ in ticks(schedules, "each")] == ["fired", "fired"]
    assert schedules.get("each").finished_at is not None


def test_a_schedule_ends_after_its_last_run_and_is_kept(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60, max_runs=2)
    for _ in range(5):
        beat.after(60)

    assert [at for at, _, _ in ticks(schedules, "each")] == [60, 120]
    assert schedules.get("each").finished_at == NOON + 120 * SECOND
    schedules.edit("each", max_runs=3)
    for _ in range(5):
        beat.after(60)
    assert [at for at, _, _ in ticks(schedules, "each")] == [60, 120, 360]


def test_a_clocked_schedule_fires_once(schedules: Schedules, beat: Beat):
    schedules.create("once", "tasks.do", AT_NOON + timedelta(seconds=90))
    for _ in range(5):
        beat.after(60)

    assert ticks(schedules, "once") == [(90, "fired", None)]
    assert schedules.get("once").finished_at is not None


def even_minutes(definition: Any, moment: datetime) -> bool:
    return moment.minute % 2 == 0


def test_when_decides_of_each_tick(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", crontab(), when=f"{__name__}.even_minutes")
    schedules.create("other", "tasks.do", crontab())
    for _ in range(3):
        beat.after(60)

    assert ticks(schedules, "each") == [(60, "skipped", "when"), (120, "fired", None), (180, "skipped", "when")]
    assert len(ticks(schedules, "other")) == 3


def test_a_when_that_cannot_be_called_is_an_error_of_its_schedule(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", crontab(), when="no.such.module.function")
    schedules.create("other", "tasks.do", crontab())
    beat.after(60)

    assert "No module named 'no'" in schedules.get("each").error
    assert len(beat.messages()) == 1


def test_a_jittered_tick_fires_at_its_own_moment(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", crontab(), jitter=timedelta(seconds=30))
    due = schedules.get("each").due_at
    assert due is not None
    assert schedules.preview("each", 1) == [moment_of(due)]
    beat.after((due - NOON - 1) / SECOND)
    assert beat.messages() == []
    beat.after(0.000002)
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
    for fields in {"timezone": "Nowhere"}, {"colour": "red"}, {"schedule": "* * *"}, {"name": "other"}:
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


def test_each_outcome_is_signalled_once(schedules: Schedules, beat: Beat, app: Celery):
    told: list[tuple[str, str]] = []

    def hear(signal: Any = None, sender: Any = None, schedule: str = "", tick: Any = None, **_: Any) -> None:
        told.append((schedule, str(tick.outcome)))

    for signal in schedule_fired, schedule_skipped, schedule_misfired:
        signal.connect(hear)
    schedules.create("each", "tasks.do", 60, overlap="skip")
    beat.after(120)
    beat.after(60)
    beat.after(0)

    assert told == [("each", "fired"), ("each", "misfired"), ("each", "skipped")]


def test_a_manual_fire_counts_for_overlap(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60, overlap="skip")
    schedules.trigger("each")
    beat.after(60)

    assert [outcome for _, outcome, _ in ticks(schedules, "each")] == ["fired", "skipped"]


def test_more_schedules_than_one_transaction_takes_are_all_fired(schedules: Schedules, beat: Beat):
    one = Definition(name="one", task="tasks.do", kind="interval", spec="60")
    schedules.create_many([replace(one, name=f"number {number}") for number in range(250)])

    assert beat.after(60) == 250
    assert len({message.task_id for message in beat.messages()}) == 250


def test_a_beat_that_stalls_within_its_transaction_holds_nobody_up_for_long(
    app: Celery, schedules: Schedules, beat: Beat, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    """Stopped, swapped out, or cut off: the server ends its transaction, and another beat fires."""
    if app.conf.broker_url.split(":")[0] != "sqlqueue+postgresql+psycopg":
        pytest.skip("this database ends no transaction by itself")
    monkeypatch.setattr(postgresql, "IDLE_IN_TRANSACTION", 1)
    stalled, go_on = threading.Event(), threading.Event()

    class Stalling(app.Task):  # type: ignore[misc,name-defined]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            if threading.current_thread() is thread:
                stalled.set()
                assert go_on.wait(60)
            return super().apply_async(*args, **options)

    @app.task(name="tasks.stall", base=Stalling, shared=False)
    def stall() -> None: ...

    schedules.create("each", "tasks.stall", 60)
    clock.advance(timedelta(seconds=60))
    thread = threading.Thread(target=Firing(app, Home(app)).run_once)
    thread.start()
    assert stalled.wait(60)
    assert beat.after(0) == 0
    eventually(lambda: beat.after(0) == 1)
    go_on.set()
    thread.join(60)

    assert len(beat.messages()) == 1
    assert ticks(schedules, "each") == [(60, "fired", None)]
    assert schedules.get("each").error is None


def test_a_long_outage_is_caught_up_in_transactions_that_a_node_can_finish(schedules: Schedules, beat: Beat):
    one = Definition(name="one", task="tasks.do", kind="interval", spec="1", misfire="fire_all")
    schedules.create_many([replace(one, name=f"number {number}") for number in range(5)])
    handled: list[int] = []
    store = beat.firing._store
    fire_due = store.fire_due

    def counted(*args: Any, **options: Any) -> Any:
        advances = fire_due(*args, **options)
        handled.append(sum(len(advance.ticks) for advance in advances))
        return advances

    store.fire_due = counted  # type: ignore[method-assign]
    beat.after(400)

    assert sum(handled) == 2000
    assert max(handled) == 800
    assert len(beat.messages()) == 2000


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
