"""Events of tasks are sent together, and all the same none is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kombu_sqlqueue.event_sending import EventsStep

from .test_events import TASKS, types
from .workers import Site, eventually


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_events_of_many_tasks_are_few_messages(make_site: Callable[..., Site], pool: str):
    """And at a warm shutdown none of them is left untold. (Of the task that runs on meanwhile Celery may tell no more.)"""
    site = make_site(event_queue_ttl=600)
    with site.app.connection() as connection:
        receiver = site.app.events.Receiver(connection)
        receiver.queue(connection.default_channel).declare()
        for number in range(TASKS):
            site.send("add", number, 1)
        last = site.send("sleep_late", "last", 2)
        worker = site.worker("-E", "-P", pool, "-c2")
        eventually(lambda: site.marks("begin last"))
        worker.stop()
        messages = site.counts(receiver.queue.name).ready
        receiver.should_stop, events = False, []
        receiver.handlers["*"] = events.append
        with contextlib.suppress(TimeoutError):
            receiver.capture(timeout=5)

    told = types(events)
    of_others = types([each for each in events if each.get("uuid") != last.id])
    assert [of_others[f"task-{what}"] for what in ("received", "started", "succeeded")] == [TASKS] * 3
    # Each would be one of its own otherwise; those of the worker are.
    assert messages - sum(number for type, number in told.items() if type.startswith("worker-")) < TASKS


def test_a_worker_that_sends_no_events_at_all_runs(make_site: Callable[..., Site]):
    site = make_site()
    site.worker("--without-heartbeat", "--without-gossip", "--without-mingle").wait_ready()

    assert site.send("add", 1, 2).get(timeout=60) == 3


def test_what_is_added_while_events_are_sent_is_not_forgotten(make_site: Callable[..., Site]):
    """Celery before 5.7 emptied its buffer after sending, whatever had come meanwhile."""
    site = make_site()
    with site.app.connection() as connection:
        dispatcher = site.app.events.Dispatcher(connection)
        consumer = SimpleNamespace(event_dispatcher=dispatcher, timer=Mock(), hub=None)
        EventsStep(consumer).start(consumer)
        sent: list[list[str]] = []

        def publish(events: Any, *args: Any, **kwargs: Any) -> None:
            sent.append([each["type"] for each in events])
            if len(sent) == 1:
                dispatcher.send("task-succeeded")

        dispatcher.producer = Mock(publish=publish)
        dispatcher.send("task-started")
        dispatcher.flush()
        dispatcher.flush()
    assert sent == [["task-started"], ["task-succeeded"]]
