"""Consuming from Kombu's event loop, as Celery's prefork workers do."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from kombu import Consumer, Queue
from kombu.asynchronous import Hub, set_event_loop


@pytest.fixture
def hub():
    hub = Hub()
    set_event_loop(hub)
    yield hub
    hub.close()
    set_event_loop(None)


def run(hub, until, *, timeout=10.0):
    """Turn the loop until the condition holds; False if it does not within `timeout` seconds."""
    hub.call_repeatedly(0.02, lambda: None)
    loop, end = hub.loop, time.monotonic() + timeout
    while not until() and time.monotonic() < end:
        next(loop)
    return until()


def test_the_loop_delivers_what_waits_and_what_comes(connect, connection, hub, name):
    channel = connection.channel()
    queue = Queue(name)(channel)
    queue.declare()
    channel.Producer().publish("waits", routing_key=name)
    got = []
    consumer = Consumer(channel, [queue], on_message=lambda m: (got.append(m.payload), m.ack()))
    consumer.consume()
    connection.register_with_event_loop(hub)
    assert run(hub, lambda: got == ["waits"])

    threading.Timer(0.2, lambda: connect().Producer().publish("comes", routing_key=name)).start()
    assert run(hub, lambda: got == ["waits", "comes"])


def test_the_loop_respects_the_window(connection, hub, name):
    channel = connection.channel()
    queue = Queue(name)(channel)
    queue.declare()
    for number in range(10):
        channel.Producer().publish(number, routing_key=name)
    got = []
    consumer = Consumer(channel, [queue], on_message=got.append, prefetch_count=2)
    consumer.consume()
    connection.register_with_event_loop(hub)
    run(hub, lambda: len(got) > 2, timeout=0.5)
    assert [m.payload for m in got] == [0, 1]

    got[0].ack()
    assert run(hub, lambda: len(got) == 3)


def test_an_ack_in_the_loop_makes_room_at_once(connection, hub, name):
    """Well before the next poll, although the loop was about to sleep until then."""
    channel = connection.channel()
    queue = Queue(name)(channel)
    queue.declare()
    for number in range(2):
        channel.Producer().publish(number, routing_key=name)
    acked_at = []

    def ack_later(message):
        threading.Timer(0.1, hub.call_soon, (ack, message)).start()

    def ack(message):
        message.ack()
        acked_at.append(time.monotonic())

    consumer = Consumer(channel, [queue], on_message=ack_later, prefetch_count=1)
    consumer.consume()
    connection.register_with_event_loop(hub)
    end = time.monotonic() + 10
    while len(acked_at) < 2 and time.monotonic() < end:
        hub.run_once()

    first, second = acked_at
    assert second - first < 0.5


def test_what_becomes_due_is_claimed_in_the_same_turn(connection, hub, name, monkeypatch):
    """Nobody is asked in between when the next one is due: the promotion has told."""
    channel = connection.channel()
    queue = Queue(name)(channel)
    queue.declare()
    got, asked = [], []
    consumer = Consumer(channel, [queue], on_message=lambda m: (got.append(m.payload), m.ack()))
    consumer.consume()
    connection.register_with_event_loop(hub)
    for number in range(3):
        channel.Producer().publish(number, routing_key=name, headers=task_due_in(0.5 + number / 10))
    messages, keeper = connection.transport.process.messages, connection.transport.keeper
    for owner, call in [(messages, "promote"), (messages, "next_due"), (keeper, "claim")]:
        watch(monkeypatch, owner, call, asked)

    assert run(hub, lambda: got == [0, 1, 2])
    promoted = [at for at, (call, answer) in enumerate(asked) if call == "promote" and answer.ready]
    assert sum(asked[at][1].ready for at in promoted) == 3
    assert all(asked[at + 1][0] == "claim" and asked[at + 1][1] for at in promoted)


def task_due_in(seconds):
    return {"id": "id", "task": "task", "eta": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}


def watch(monkeypatch, owner, name, asked):
    """Note each call and its answer."""
    call = getattr(owner, name)

    def noting(*args, **kwargs):
        answer = call(*args, **kwargs)
        asked.append((name, answer))
        return answer

    monkeypatch.setattr(owner, name, noting)


def test_a_connection_may_be_closed_in_the_loop(connect, hub, name):
    connection = connect()
    channel = connection.channel()
    queue = Queue(name)(channel)
    got = []
    consumer = Consumer(channel, [queue], on_message=got.append)
    consumer.consume()
    connection.register_with_event_loop(hub)
    channel.Producer().publish("x", routing_key=name)
    assert run(hub, lambda: got)
    connection.close()
    with suppress(TimeoutError):
        run(hub, lambda: False, timeout=0.3)

    assert Queue(name)(connect().channel()).get().payload == "x"


def test_who_always_has_something_to_do_promotes_what_is_due(connect, connection, hub, name):
    """Also if it was published in the midst of that, when nobody waited and nobody was told."""
    channel = connection.channel()
    queue = Queue(name)(channel)
    queue.declare()
    elsewhere = connect().Producer()
    got = []

    def work(message):
        got.append(message.payload)
        message.ack()
        if message.payload == "due":
            return
        elsewhere.publish("more", routing_key=name)
        if len(got) == 100:
            elsewhere.publish("due", routing_key=name, headers=task_due_in(0.5), priority=9)

    consumer = Consumer(channel, [queue], on_message=work)
    consumer.consume()
    connection.register_with_event_loop(hub)
    for _ in range(20):
        elsewhere.publish("more", routing_key=name)
    assert run(hub, lambda: "due" in got, timeout=5)


@pytest.mark.parametrize("listen", [True, False])
def test_who_hears_nothing_looks_for_what_is_due_at_each_poll(connect, hub, name, listen):
    connection = connect(listen=listen, polling_interval=0.5)
    channel = connection.channel()
    queue = Queue(name)(channel)
    queue.declare()
    got = []
    consumer = Consumer(channel, [queue], on_message=lambda m: (got.append(m.payload), m.ack()))
    consumer.consume()
    connection.register_with_event_loop(hub)
    run(hub, lambda: False, timeout=1)
    connect().Producer().publish("due", routing_key=name, headers=task_due_in(0.2))
    assert run(hub, lambda: got, timeout=3)
    connection.close()
    connection.transport.process.close()
