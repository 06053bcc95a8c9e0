"""Ack, reject, requeue, prefetch, and what happens to messages that nobody settled."""

from __future__ import annotations

import threading

import pytest
from kombu import Consumer, Queue


@pytest.fixture
def queue(channel, name):
    queue = Queue(name)(channel)
    queue.declare()
    return queue


@pytest.fixture
def publish(channel, name):
    def publish(*bodies, **options):
        for body in bodies:
            channel.Producer().publish(body, routing_key=name, **options)

    return publish


def consume(connection, queue, drain, *, prefetch=0, limit=1000, **options):
    """The messages a consumer of its own channel gets, and that channel."""
    channel = connection.channel()
    got = []
    consumer = Consumer(channel, [queue], on_message=got.append, prefetch_count=prefetch or None, **options)
    consumer.consume()
    drain(connection, limit)
    return got, channel


def test_messages_come_first_in_first_out(connection, queue, publish, drain):
    publish(*range(50))
    got, _ = consume(connection, queue, drain)

    assert [message.payload for message in got] == list(range(50))


def test_an_acked_message_is_gone(connect, connection, queue, publish, drain):
    publish("x")
    [message], channel = consume(connection, queue, drain)
    message.ack()
    assert message.acknowledged
    channel.close()
    connection.close()

    assert consume(connect(), queue, drain)[0] == []


def test_an_unacked_message_comes_back_when_its_channel_closes(connection, queue, publish, drain):
    publish("x")
    _, channel = consume(connection, queue, drain)
    waiting, _ = consume(connection, queue, drain)
    assert waiting == []
    channel.close()
    drain(connection)

    [message] = waiting
    assert message.payload == "x"
    assert message.delivery_info["redelivered"]


def test_an_unacked_message_comes_back_when_its_connection_closes(connect, queue, publish, drain):
    publish("x")
    lost = connect()
    assert len(consume(lost, queue, drain)[0]) == 1
    lost.close()

    assert len(consume(connect(), queue, drain)[0]) == 1


def test_a_requeued_message_is_delivered_again_and_says_so(connection, queue, publish, drain):
    publish("x")
    seen = []

    def receive(message):
        seen.append(bool(message.delivery_info["redelivered"]))
        if len(seen) < 3:
            message.requeue()
        else:
            message.ack()

    with Consumer(connection.channel(), [queue], on_message=receive):
        drain(connection)

    assert seen == [False, True, True]


def test_a_requeued_message_keeps_its_content(connection, queue, publish, drain):
    publish({"a": "é"}, headers={"h": 1}, correlation_id="c")
    queue.get().requeue()
    message = queue.get()

    assert (message.payload, message.headers["h"], message.properties["correlation_id"]) == ({"a": "é"}, 1, "c")


def test_a_rejected_message_does_not_come_back(connection, queue, publish, drain):
    publish("x")
    queue.get().reject()

    assert queue.get() is None
    assert consume(connection, queue, drain)[0] == []


def test_settling_twice_is_refused_by_kombu(queue, publish):
    publish("x")
    message = queue.get()
    message.ack()

    with pytest.raises(message.MessageStateError):
        message.reject()


def test_a_consumer_without_acks_gets_each_message_once(connection, queue, publish, drain):
    publish(*range(5))
    got, channel = consume(connection, queue, drain, no_ack=True)
    channel.close()

    assert [message.payload for message in got] == list(range(5))
    assert consume(connection, queue, drain)[0] == []


def test_get_without_acks_takes_the_message(connection, queue, publish, drain):
    publish("x")

    assert queue.get(no_ack=True).payload == "x"
    assert consume(connection, queue, drain)[0] == []


def test_get_answers_none_at_once_when_there_is_nothing(queue):
    assert queue.get() is None


def test_one_drain_delivers_all_that_is_ready(connection, channel, queue, publish):
    """As on RabbitMQ; Kombu's own tests count on it."""
    publish(*range(3))
    got = []
    with Consumer(channel, [queue], on_message=got.append):
        connection.drain_events(timeout=5)

    assert [message.payload for message in got] == [0, 1, 2]


def test_no_more_than_the_prefetch_window_is_delivered(connection, queue, publish, drain):
    publish(*range(10))
    got, _ = consume(connection, queue, drain, prefetch=3)
    assert [message.payload for message in got] == [0, 1, 2]

    got[1].ack()
    drain(connection)
    assert [message.payload for message in got] == [0, 1, 2, 3]


def test_the_window_can_be_changed_while_consuming(connection, queue, publish, drain):
    publish(*range(10))
    channel = connection.channel()
    got = []
    consumer = Consumer(channel, [queue], on_message=got.append, prefetch_count=1)
    consumer.consume()
    drain(connection)
    assert len(got) == 1

    consumer.qos(prefetch_count=4)
    drain(connection)
    assert len(got) == 4


def test_a_prefetch_of_one_shares_fairly(connection, queue, publish, drain):
    publish(*range(4))
    first, _ = consume(connection, queue, drain, prefetch=1)
    second, _ = consume(connection, queue, drain, prefetch=1)

    assert [m.payload for m in first + second] == [0, 1]


def test_what_a_channel_holds_beyond_its_window_is_left_to_others(connect, queue, publish, drain):
    publish(*range(6))
    mine, _ = consume(connect(), queue, drain, prefetch=2)
    others, _ = consume(connect(), queue, drain)

    assert sorted(m.payload for m in mine + others) == list(range(6))
    assert len(mine) == 2


def test_recover_gives_back_what_is_unacked(connection, channel, queue, publish, drain):
    publish("x")
    got = []
    consumer = Consumer(channel, [queue], on_message=got.append)
    consumer.consume()
    drain(connection)
    consumer.recover(requeue=True)
    drain(connection)

    assert [m.payload for m in got] == ["x", "x"]
    got[-1].ack()


def test_acks_may_come_from_another_thread(connect, connection, queue, publish, drain):
    publish(*range(20))
    got, channel = consume(connection, queue, drain)
    threads = [threading.Thread(target=message.ack) for message in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channel.close()
    connection.close()

    assert consume(connect(), queue, drain)[0] == []


def test_a_cancelled_consumer_gets_nothing_more(connection, channel, queue, publish, drain):
    got = []
    consumer = Consumer(channel, [queue], on_message=got.append)
    consumer.consume()
    publish("one")
    drain(connection)
    consumer.cancel()
    publish("two")
    drain(connection)

    assert [m.payload for m in got] == ["one"]
    assert queue.get().payload == "two"


def test_a_consumer_may_cancel_itself_while_it_receives(connection, channel, queue, publish, drain):
    publish(*range(5))
    got = []

    def receive(message):
        got.append(message.payload)
        message.ack()
        consumer.cancel()

    consumer = Consumer(channel, [queue], on_message=receive)
    consumer.consume()
    drain(connection)

    assert got == [0]
    assert [queue.get(no_ack=True).payload for _ in range(4)] == [1, 2, 3, 4]


def test_each_queue_of_a_consumer_is_served(connection, channel, name, drain):
    queues = [Queue(f"{name}-{number}")(channel) for number in range(3)]
    got = []
    with Consumer(channel, queues, on_message=got.append):
        for number, queue in enumerate(queues):
            channel.Producer().publish(number, routing_key=queue.name)
        drain(connection)

    assert sorted(m.payload for m in got) == [0, 1, 2]


def test_two_consumers_of_a_queue_share_its_messages(connection, queue, publish, drain):
    got = [[], []]
    for received in got:
        Consumer(connection.channel(), [queue], on_message=lambda m, r=received: (r.append(m.payload), m.ack())).consume()
    publish(*range(20))
    drain(connection)

    assert sorted(got[0] + got[1]) == list(range(20))


def test_a_callback_that_raises_loses_nothing(connection, channel, queue, publish, drain):
    publish("x")

    def receive(message):
        raise KeyError("from the callback")

    consumer = Consumer(channel, [queue], on_message=receive)
    consumer.consume()
    with pytest.raises(KeyError, match="from the callback"):
        connection.drain_events(timeout=5)
    channel.close()

    assert queue(connection.channel()).get().payload == "x"
