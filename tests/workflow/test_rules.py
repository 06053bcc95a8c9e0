"""Late ticks, overlapping ticks, limits, pauses, jitter and `when`, from row to message. On each database."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import crontab

from celery_workflow import Definition, Schedules
from celery_workflow.schedules.zones import moment_of

from .conftest import NOON, Beat
from .ticking import AT_NOON, SECOND, ticks


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


def test_a_manual_fire_counts_for_overlap(schedules: Schedules, beat: Beat):
    schedules.create("each", "tasks.do", 60, overlap="skip")
    schedules.trigger("each")
    beat.after(60)

    assert [outcome for _, outcome, _ in ticks(schedules, "each")] == ["fired", "skipped"]


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
