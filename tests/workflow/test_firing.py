"""Firing: a tick, its message and the next tick are one transaction. On each database."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from celery_workflow import Definition, ScheduleError, Schedules
from celery_workflow.home import Home
from celery_workflow.schedules.firing import Firing
from celery_workflow.signals import schedule_fired, schedule_misfired, schedule_skipped
from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql import postgresql

from ..celery.workers import eventually
from .conftest import NOON, Beat
from .ticking import AT_NOON, SECOND, ticks


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


def test_a_queue_declared_in_a_transaction_that_failed_is_declared_again(
    schedules: Schedules, beat: Beat, failing: set[str]
):
    """Otherwise its messages would go nowhere."""
    options = {"exchange": "fresh", "routing_key": "fresh", "queue": "fresh"}
    schedules.create("good", "tasks.do", 60, options=options)
    schedules.create("bad", "tasks.bad", 60, options=options)
    failing.add("tasks.bad")
    beat.after(60)
    beat.after(60)

    assert [(message.queue, message.task) for message in beat.messages()] == [("fresh", "tasks.do")] * 2
    assert process_for(beat.home.options).routing.queue("fresh") is not None
    assert process_for(beat.home.options).routing.route("fresh", "fresh") != []


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
