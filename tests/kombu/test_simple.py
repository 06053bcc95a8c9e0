"""Kombu's SimpleQueue and SimpleBuffer, and a consumer that waits."""

from __future__ import annotations

import threading
import time

import pytest
from kombu import Consumer, Queue


def test_a_simple_queue_is_a_queue(connection, name):
    with connection.SimpleQueue(name) as queue:
        for number in range(3):
            queue.put({"n": number})
        assert len(queue) == 3
        for number in range(3):
            message = queue.get(timeout=5)
            assert message.payload == {"n": number}
            message.ack()
        assert len(queue) == 0


def test_an_empty_simple_queue_says_so(connection, name):
    with connection.SimpleQueue(name) as queue:
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.2)
        with pytest.raises(queue.Empty):
            queue.get_nowait()


def test_a_simple_queue_can_be_cleared(connection, name):
    with connection.SimpleQueue(name) as queue:
        queue.put("x")
        queue.put("y")

        assert queue.clear() == 2
        assert len(queue) == 0


def test_a_simple_buffer_keeps_nothing_to_ack(connection, name):
    with connection.SimpleBuffer(name) as buffer:
        buffer.put("x")
        assert buffer.get(timeout=5).payload == "x"
        with pytest.raises(buffer.Empty):
            buffer.get(timeout=0.2)


@pytest.mark.parametrize("kind", ["SimpleQueue", "SimpleBuffer"])
def test_what_is_put_carries_headers_priority_and_expiration(connection, name, kind):
    """Simple or not, it is a message as any other."""
    with getattr(connection, kind)(name, queue_opts={"max_priority": 10}) as queue:
        queue.put("low", headers={"n": 1}, priority=1)
        queue.put("gone", priority=9, expiration=0.1)
        queue.put("high", headers={"n": 2}, priority=7)
        time.sleep(0.2)
        messages = [queue.get(timeout=5) for _ in range(2)]

        assert [(message.payload, message.headers) for message in messages] == [("high", {"n": 2}), ("low", {"n": 1})]
        for message in messages:
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.1)


def test_a_waiting_consumer_is_woken_by_a_publish(connect, connection, name):
    """It is there well before the next poll would have found it."""
    with connection.SimpleQueue(name) as queue:
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.5)
        timer = threading.Timer(0.5, lambda: connect().Producer().publish(time.time(), routing_key=name))
        timer.start()
        message = queue.get(timeout=10)
        waited = time.time() - message.payload
        message.ack()
        timer.join()

    assert waited < 0.5


def test_draining_without_a_message_times_out_in_time(connection, channel, name):
    with Consumer(channel, [Queue(name)]):
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)

    assert 0.25 < time.monotonic() - begun < 1.5
