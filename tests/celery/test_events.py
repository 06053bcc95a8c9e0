"""Events of real workers, as `celery events`, Flower and exporters receive them."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery

from kombu_sqlqueue.event_sending import EventsStep

from .workers import Site, eventually

TASKS = 200


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    """A worker that sends no events until it is told to."""
    shared_site.worker("-c2")
    return shared_site


@contextmanager
def listening(app: Celery) -> Iterator[list[dict[str, Any]]]:
    """What arrives meanwhile; begins when something has arrived."""
    events: list[dict[str, Any]] = []
    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": events.append})
        thread = threading.Thread(target=receiver.capture)
        thread.start()
        try:
            eventually(lambda: events)
            yield events
        finally:
            receiver.should_stop = True
            thread.join(20)


def types(events: list[dict[str, Any]]) -> Counter[str]:
    return Counter(each["type"] for each in events)


def test_every_event_of_many_tasks_arrives(site: Site):
    """In order for each task, and from a worker that was told to send them only now."""
    site.app.control.enable_events(reply=True, destination=["w1@test"])
    with listening(site.app) as events:
        results = [site.send("add", i, 1) for i in range(TASKS)]
        eventually(lambda: types(events)["task-succeeded"] == TASKS)

    assert types(events)["task-received"] == types(events)["task-started"] == TASKS
    of_one = [each["type"] for each in events if each.get("uuid") == results[0].id]
    assert of_one == ["task-received", "task-started", "task-succeeded"]


def test_each_listener_gets_every_event(site: Site):
    site.app.control.enable_events(reply=True, destination=["w1@test"])
    with listening(site.app) as first, listening(site.app) as second:
        site.send("add", 1, 1)
        for events in (first, second):
            eventually(lambda events=events: types(events)["task-succeeded"] == 1)


def test_a_listener_leaves_nothing_behind(site: Site):
    site.app.control.enable_events(reply=True, destination=["w1@test"])
    with listening(site.app):
        assert [queue for queue in site.queues() if queue.startswith("celeryev")]

    assert not [queue for queue in site.queues() if queue.startswith("celeryev")]


def test_a_worker_may_send_no_events_at_all(make_site: Callable[..., Site]):
    """Celery makes no dispatcher then."""
    make_site().worker("-P", "solo", "--without-gossip", "--without-heartbeat")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_events_of_many_tasks_are_few_messages(make_site: Callable[..., Site], pool: str):
    """And at a warm shutdown all are told, also of the task that was running."""
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
    assert [told[f"task-{what}"] for what in ("received", "started", "succeeded")] == [TASKS + 1] * 3
    assert last.id in {each["uuid"] for each in events if each["type"] == "task-succeeded"}
    # Each would be one of its own otherwise; those of the worker are.
    assert messages - sum(number for type, number in told.items() if type.startswith("worker-")) < TASKS / 4


def test_what_is_added_while_events_are_sent_is_not_forgotten(site: Site):
    """Celery before 5.7 emptied its buffer after sending, whatever had come meanwhile."""
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
