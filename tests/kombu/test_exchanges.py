"""Routing between connections: direct, topic and fanout exchanges, bindings, mailboxes."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

import pytest
from kombu import Consumer, Exchange, Queue, binding
from kombu.common import Broadcast
from kombu.exceptions import ChannelError
from kombu.pidbox import Mailbox


def names_of(queues):
    """Which of these queues got a message; takes one from each."""
    return [queue.name.rpartition("-")[2] for queue in queues if queue.get(no_ack=True) is not None]


def declare(channel, name, exchange, **keys):
    """Queues of these names, bound by these keys."""
    queues = [Queue(f"{name}-{suffix}", exchange, routing_key=key)(channel) for suffix, key in keys.items()]
    for queue in queues:
        queue.declare()
    return queues


def test_a_direct_exchange_compares_keys(channel, name):
    exchange = Exchange(name, type="direct")
    queues = declare(channel, name, exchange, a="one", b="one", c="two")
    channel.Producer(exchange).publish("x", routing_key="one")

    assert names_of(queues) == ["a", "b"]


def test_a_topic_exchange_matches_words(channel, name):
    exchange = Exchange(name, type="topic")
    queues = declare(channel, name, exchange, a="#", b="stock.*", c="*.nyse", d="stock.us.#", e="stock")
    channel.Producer(exchange).publish("x", routing_key="stock.us")

    assert names_of(queues) == ["a", "b", "d"]


def test_a_fanout_exchange_reaches_all(channel, name):
    exchange = Exchange(name, type="fanout")
    queues = declare(channel, name, exchange, a="", b="", c="ignored")
    channel.Producer(exchange).publish("x", routing_key="whatever")

    assert names_of(queues) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_what_one_connection_declares_another_can_use(connect, channel, name, kind):
    exchange = Exchange(name, type=kind)
    queues = declare(channel, name, exchange, a="k")
    connect().Producer(exchange=Exchange(name, type=kind), auto_declare=False).publish("x", routing_key="k")

    assert names_of(queues) == ["a"]


def test_a_queue_may_have_many_bindings(channel, name):
    one, two = Exchange(f"{name}-one", type="direct"), Exchange(f"{name}-two", type="topic")
    queue = Queue(name, [binding(one, routing_key="a"), binding(one, routing_key="b"), binding(two, routing_key="c.#")])
    queue = queue(channel)
    queue.declare()
    producer = channel.Producer()
    for exchange, key in ((one, "a"), (one, "b"), (one, "c.d"), (two, "c.d"), (two, "a")):
        producer.publish(f"{key} {exchange.name[-3:]}", exchange=exchange, routing_key=key, declare=[exchange])

    assert [queue.get(no_ack=True).payload for _ in range(3)] == ["a one", "b one", "c.d two"]
    assert queue.get() is None


def test_an_unbound_queue_gets_nothing(channel, name):
    exchange = Exchange(name, type="direct")
    [queue] = declare(channel, name, exchange, a="k")
    queue.unbind_from(exchange, "k")
    channel.Producer(exchange).publish("x", routing_key="k")

    assert queue.get() is None


def test_a_message_that_nobody_wants_is_dropped(channel, name):
    channel.Producer(Exchange(name, type="direct")).publish("x", routing_key="k")
    [queue] = declare(channel, name, Exchange(name, type="direct"), a="k")

    assert queue.get() is None


def test_a_task_that_goes_nowhere_is_told(channel, name, caplog):
    """Its sender may have meant another exchange or key; of events and other messages nothing is said."""
    producer = channel.Producer(Exchange(name, type="topic"))
    caplog.set_level(logging.WARNING)
    producer.publish([], routing_key="wrong", delivery_mode="transient")
    assert not caplog.records
    producer.publish([], routing_key="wrong", headers={"task": "shop.pay", "id": "7"})

    assert f"task shop.pay[7] goes nowhere: no queue is bound to exchange '{name}' for routing key 'wrong'" in caplog.text


def test_a_queue_bound_after_a_dropped_message_gets_the_next(connect, channel, name):
    """Nobody may remember for long that there was no route."""
    exchange = Exchange(name, type="topic")
    producer = channel.Producer(exchange)
    producer.publish("dropped", routing_key="k")
    [queue] = declare(connect().channel(), name, exchange, a="#")
    producer.publish("wanted", routing_key="k")

    assert queue.get(no_ack=True).payload == "wanted"


def test_a_deleted_exchange_leads_nowhere(channel, name):
    exchange = Exchange(name, type="fanout")
    [queue] = declare(channel, name, exchange, a="k")
    exchange(channel).delete()
    channel.Producer().publish("x", exchange=name, routing_key="other")

    assert queue.get() is None
    assert queue.queue_declare(passive=True)


def test_an_exchange_in_use_can_be_spared(channel, name):
    exchange = Exchange(name, type="fanout")(channel)
    [queue] = declare(channel, name, exchange, a="k")
    exchange.delete(if_unused=True)
    Exchange(name, passive=True)(channel).declare()
    queue.unbind_from(exchange, "k")
    exchange.delete(if_unused=True)

    with pytest.raises(ChannelError):
        Exchange(name, passive=True)(channel).declare()


def test_a_passive_declare_of_no_exchange_is_refused(channel, name):
    with pytest.raises(ChannelError):
        Exchange(name, passive=True)(channel).declare()
    Exchange(name)(channel).declare()
    Exchange(name, passive=True)(channel).declare()


def test_bindings_are_listed(connection, channel, name):
    declare(channel, name, Exchange(name, type="topic"), a="k.#")
    bindings = connection.get_manager().get_bindings()

    assert {"destination": f"{name}-a", "source": name, "routing_key": "k.#"} in bindings


def test_a_broadcast_queue_of_each_consumer_gets_every_message(connect, channel, name, drain):
    connections = [connect(), connect()]
    got = []
    for connection in connections:
        consumer = Consumer(connection.channel(), [Broadcast(name)], callbacks=[lambda body, m: (got.append(body), m.ack())])
        consumer.consume()
    channel.Producer(Exchange(name, type="fanout")).publish("x")
    for connection in connections:
        drain(connection)

    assert got == ["x", "x"]


@pytest.fixture
def serve(connect, name):
    """Starts nodes of a mailbox, as Celery's workers have them; they answer until the test ends."""
    mailbox = Mailbox(name, type="fanout", queue_expires=10, queue_ttl=300)
    done = threading.Event()
    connections = []

    def node(host):
        connection = connect()
        node = mailbox(connection).Node(host, state={"host": host}, channel=connection.channel())
        node.handlers["ping"] = lambda state: f"pong from {state['host']}"
        node.listen()
        return connection

    def loop():
        while not done.is_set():
            for connection in connections:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.05)

    server = threading.Thread(target=loop)

    def serve(*hosts):
        connections.extend(map(node, hosts))
        server.start()
        return mailbox

    def stop():
        done.set()
        server.join(10)
        for connection in connections:
            connection.close()

    serve.stop = stop
    yield serve
    stop()


def test_a_mailbox_answers(connect, serve):
    client = serve("one", "two")(connect())
    for _ in range(2):
        replies = client.multi_call("ping", timeout=5, limit=2)
        assert sorted(replies, key=str) == [{"one": "pong from one"}, {"two": "pong from two"}]

    assert client.call(["two"], "ping", timeout=5) == [{"two": "pong from two"}]


def test_a_mailbox_leaves_nothing_behind(connect, serve, count_rows):
    connection = connect()
    client = serve("one", "two")(connection)
    client.multi_call("ping", timeout=5, limit=2)
    client.multi_call("ping", timeout=0.01, limit=2)
    serve.stop()
    connection.close()

    assert count_rows("queue", "binding", "consumer", "message", "dead") == [0, 0, 0, 0, 0]
