"""Declaring, counting, purging and deleting queues; priorities and times to live."""

from __future__ import annotations

import time

import pytest
from kombu import Consumer, Queue
from kombu.exceptions import ChannelError


def publish(channel, name, *bodies, **options):
    for body in bodies:
        channel.Producer().publish(body, routing_key=name, **options)


def take_all(queue):
    got = []
    while (message := queue.get(no_ack=True)) is not None:
        got.append(message.payload)
    return got


def until(condition, *, timeout=10.0):
    """Whether the condition holds within `timeout` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


# -- declaring ----------------------------------------------------------------------------


def test_a_passive_declare_counts_what_waits(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, *range(7))
    assert tuple(queue.queue_declare(passive=True))[:2] == (name, 7)

    take_all(queue)
    assert queue.queue_declare(passive=True).message_count == 0


def test_a_message_that_is_held_does_not_wait(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, 1, 2)
    queue.get()

    assert queue.queue_declare(passive=True).message_count == 1


def test_a_passive_declare_counts_consumers(connect, channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    assert queue.queue_declare(passive=True).consumer_count == 0
    other = connect()
    with Consumer(channel, [queue]), Consumer(other.channel(), [queue]):
        assert queue.queue_declare(passive=True).consumer_count == 2

    assert queue.queue_declare(passive=True).consumer_count == 0


def test_a_passive_declare_of_nothing_is_refused(connection, channel, name):
    with pytest.raises(ChannelError) as raised:
        Queue(name)(channel).queue_declare(passive=True)

    assert int(raised.value.reply_code) == 404
    assert isinstance(raised.value, connection.channel_errors)


def test_a_queue_without_a_name_gets_one(channel):
    queue = Queue("")(channel)
    queue.declare()

    assert queue.name.startswith("amq.gen")
    publish(channel, queue.name, "x")
    assert take_all(queue) == ["x"]


def test_declaring_again_keeps_the_messages(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, "x")
    queue.declare()

    assert take_all(queue) == ["x"]


def test_a_queue_needs_no_declaration_to_be_published_to(channel, name):
    publish(channel, name, "x")

    assert take_all(Queue(name)(channel)) == ["x"]


# -- purging and deleting -----------------------------------------------------------------


def test_a_purge_says_how_many(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, *range(5))

    assert queue.purge() == 5
    assert queue.purge() == 0
    assert queue.get() is None


def test_a_deleted_queue_is_gone_with_its_messages(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, "x")
    queue.delete()

    with pytest.raises(ChannelError):
        queue.queue_declare(passive=True)
    queue.declare()
    assert queue.get() is None


def test_a_queue_that_is_not_empty_can_be_spared(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, "x")
    queue.delete(if_empty=True)

    assert take_all(queue) == ["x"]


def test_a_queue_in_use_can_be_spared(connect, channel, name):
    """A consumer of any process counts as use."""
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, "x")
    with Consumer(connect().channel(), [queue]):
        queue.delete(if_unused=True)
        assert queue.queue_declare(passive=True).consumer_count == 1
    queue.delete(if_unused=True)

    with pytest.raises(ChannelError):
        queue.queue_declare(passive=True)


def test_a_consumer_of_a_deleted_queue_serves_the_next_of_that_name(connect, connection, channel, name, drain):
    """Its consumer learns nothing of the deletion, and need not."""
    queue = Queue(name)(channel)
    got = []
    with Consumer(channel, [queue], callbacks=[lambda body, message: (got.append(body), message.ack())]):
        drain(connection)
        Queue(name)(connect().channel()).delete()
        other = connect().channel()
        Queue(name)(other).declare()
        publish(other, name, "after")
        assert drain(connection, 1, timeout=10) == 1

    assert got == ["after"]


def test_what_is_held_of_a_deleted_queue_can_be_acked(connect, channel, name, count_rows):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, "held", "waiting")
    message = queue.get()
    Queue(name)(connect().channel()).delete()
    message.ack()

    assert until(lambda: count_rows("message", "dead") == [0, 0])


def test_a_queue_declared_otherwise_is_as_declared_last(connect, channel, name):
    """RabbitMQ refuses this; here a deploy may change a queue, and its messages stay."""
    Queue(name, max_priority=9)(channel).declare()
    publish(channel, name, "old", priority=9)
    Queue(name, max_priority=1)(connect().channel()).declare()
    publish(connect().channel(), name, "new", priority=9)

    assert take_all(Queue(name)(channel)) == ["old", "new"]


def test_an_auto_delete_queue_goes_with_its_consumer(channel, name):
    queue = Queue(name, auto_delete=True)(channel)
    with Consumer(channel, [queue]):
        assert queue.queue_declare(passive=True)

    with pytest.raises(ChannelError):
        queue.queue_declare(passive=True)


def test_an_exclusive_queue_goes_with_its_connection(connect, channel, name):
    owner = connect()
    Consumer(owner.channel(), [Queue(name, exclusive=True)]).consume()
    assert Queue(name)(channel).queue_declare(passive=True)
    owner.close()

    with pytest.raises(ChannelError):
        Queue(name)(channel).queue_declare(passive=True)


# -- priorities ---------------------------------------------------------------------------


def test_the_higher_priority_comes_first(channel, name):
    queue = Queue(name, max_priority=10)(channel)
    queue.declare()
    for priority in (0, 5, 10, 5, 1):
        publish(channel, name, priority, priority=priority)

    assert take_all(queue) == [10, 5, 5, 1, 0]


def test_with_ascending_order_the_lower_number_comes_first(connect, name):
    channel = connect(priority_order="asc").channel()
    queue = Queue(name)(channel)
    queue.declare()
    for priority in (9, 0, 3):
        publish(channel, name, priority, priority=priority)

    assert take_all(queue) == [0, 3, 9]


def test_messages_of_one_priority_stay_in_order(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    for number in range(10):
        publish(channel, name, number, priority=7)

    assert take_all(queue) == list(range(10))


def test_a_message_keeps_its_priority_when_it_is_put_back(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, "high", priority=9)
    publish(channel, name, "low", priority=1)
    queue.get().requeue()

    assert take_all(queue) == ["high", "low"]


def test_messages_put_back_together_keep_priority_and_order(channel, name):
    """And give way to what has a higher one meanwhile."""
    queue = Queue(name)(channel)
    queue.declare()
    for body, priority in [("first low", 3), ("high", 6), ("second low", 3)]:
        publish(channel, name, body, priority=priority)
    for message in [queue.get() for _ in range(3)]:
        message.requeue()
    publish(channel, name, "highest", priority=9)

    assert take_all(queue) == ["highest", "high", "first low", "second low"]


def test_a_queue_bounds_priorities(channel, name):
    """On RabbitMQ a priority above x-max-priority counts as that."""
    queue = Queue(name, max_priority=5)(channel)
    queue.declare()
    publish(channel, name, "first", priority=5)
    publish(channel, name, "second", priority=200)

    assert take_all(queue) == ["first", "second"]


# -- times to live ------------------------------------------------------------------------


def test_an_expired_message_is_not_delivered(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    publish(channel, name, "gone", expiration=0.2)
    publish(channel, name, "stays", expiration=60)
    time.sleep(0.3)

    assert take_all(queue) == ["stays"]


def test_a_queue_bounds_the_life_of_its_messages(channel, name):
    queue = Queue(name, message_ttl=0.2)(channel)
    queue.declare()
    publish(channel, name, "gone")
    publish(channel, name, "gone too", expiration=60)
    time.sleep(0.3)

    assert take_all(queue) == []


def test_a_message_in_time_is_delivered(channel, name):
    queue = Queue(name, message_ttl=60)(channel)
    queue.declare()
    publish(channel, name, "x")

    assert take_all(queue) == ["x"]
