"""Connections: what they show, how they are shared, pooled and ended."""

from __future__ import annotations

import threading

import pytest
from kombu import Connection, Queue
from kombu.exceptions import OperationalError
from kombu.mixins import ConsumerMixin
from kombu.pools import producers, reset

URL = "sqlqueue+postgresql://user:secret@127.0.0.1:1/db"


@pytest.fixture(autouse=True)
def _fresh_pools():
    yield
    reset()


@pytest.mark.parametrize("show", [repr, str, lambda c: c.as_uri(), lambda c: repr(c.transport)])
def test_a_password_is_never_shown(show):
    assert "secret" not in show(Connection(URL))


def test_a_database_that_is_away_is_a_connection_error():
    connection = Connection(URL)

    with pytest.raises(connection.connection_errors) as raised:
        connection.connect()
    assert "secret" not in str(raised.value)


def test_a_retried_connect_gives_up_with_kombus_error():
    connection = Connection(URL)

    with pytest.raises(OperationalError) as raised:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
    assert "secret" not in str(raised.value)


def test_a_connection_can_be_closed_twice_and_opened_again(connection, name):
    connection.Producer().publish("x", routing_key=name)
    connection.close()
    connection.close()
    connection.connect()

    assert Queue(name)(connection.channel()).get(no_ack=True).payload == "x"


def test_the_default_channel_connects_again_after_a_close(connection):
    connection.connect()
    connection.close()
    assert connection.connection is None

    assert connection.default_channel
    assert connection.connected


def test_an_autoretried_call_gets_the_default_channel(connection):
    """Connecting, if need be, is part of it."""

    given = []
    assert connection.autoretry(lambda channel: given.append(channel), max_retries=0)() == (None, connection.default_channel)
    assert given == [connection.default_channel]


def test_closing_a_channel_twice_is_no_error(connection):
    channel = connection.channel()
    channel.close()
    channel.close()


def test_a_pool_of_producers_publishes_from_many_threads(connection, name):
    def publish(number):
        with producers[connection].acquire(block=True, timeout=10) as producer:
            producer.publish(number, routing_key=name, retry=True)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    queue = Queue(name)(connection.channel())

    assert sorted(queue.get(no_ack=True).payload for _ in range(30)) == list(range(30))


def test_a_consumer_mixin_runs(connect, name):
    class Worker(ConsumerMixin):
        def __init__(self, connection):
            self.connection = connection
            self.got = []

        def get_consumers(self, Consumer, channel):
            return [Consumer([Queue(name)], callbacks=[self.on_message], prefetch_count=10)]

        def on_message(self, body, message):
            self.got.append(body)
            message.ack()
            self.should_stop = len(self.got) == 20

    worker = Worker(connect())
    for number in range(20):
        connect().Producer().publish(number, routing_key=name)
    worker.run(timeout=10)

    assert worker.got == list(range(20))


def test_many_channels_of_one_connection_are_told_apart(connection, name):
    channels = [connection.channel() for _ in range(20)]

    assert len({channel.channel_id for channel in channels}) == 20
    for channel in channels:
        channel.close()
    assert connection.channel()
