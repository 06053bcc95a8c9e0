"""What RabbitMQ's arguments of queues and exchanges mean here, and declarations that contradict each other."""

from __future__ import annotations

import logging

import pytest
from amqp.exceptions import PreconditionFailed
from kombu import Exchange, Queue
from kombu.exceptions import ChannelError, OperationalError

from .test_queues import publish, take_all, until

#: Arguments with no effect here, and what the warning says that there is instead.
WITHOUT_EFFECT = [
    ({"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "dead"}, "kept as dead"),
    ({"x-max-length": 1}, "may grow"),
    ({"x-max-length-bytes": 10, "x-overflow": "reject-publish"}, "may grow"),
    ({"x-delivery-limit": 3}, "max_reclaims"),
    ({"x-single-active-consumer": True}, "x-single-active-consumer"),
]


@pytest.mark.parametrize(("arguments", "instead"), WITHOUT_EFFECT)
def test_an_argument_without_effect_is_told_and_the_queue_works(channel, name, caplog, arguments, instead):
    """Declared for RabbitMQ, it serves here too, and the log says what it does not do."""
    queue = Queue(name, queue_arguments=arguments)(channel)
    with caplog.at_level(logging.WARNING):
        queue.declare()
    publish(channel, name, 1, 2)

    [told] = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert instead in told
    assert all(argument in told for argument in arguments)
    assert take_all(queue) == [1, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "quorum"},
        {"x-queue-type": "classic", "x-queue-version": 2, "x-queue-mode": "lazy"},
        {"x-max-priority": 5, "x-expires": 60_000, "x-message-ttl": 60_000},
    ],
)
def test_an_argument_that_is_honoured_or_no_matter_here_is_not_told(channel, name, caplog, arguments):
    """How RabbitMQ stores a queue is no matter: a warning at each start would be noise."""
    with caplog.at_level(logging.WARNING):
        Queue(name, queue_arguments=arguments)(channel).declare()
    publish(channel, name, 1)

    assert not caplog.records
    assert take_all(Queue(name)(channel)) == [1]


def test_a_rejected_message_of_a_queue_with_a_dead_letter_exchange_is_kept(channel, name, count_rows):
    """It goes to the table of the dead, not to the other queue."""
    letters = Queue(f"{name}-letters", Exchange(f"{name}-dlx", type="fanout"))(channel)
    letters.declare()
    queue = Queue(name, queue_arguments={"x-dead-letter-exchange": f"{name}-dlx"})(channel)
    queue.declare()
    publish(channel, name, "unwanted")
    queue.get().reject()

    assert count_rows("message", "dead") == [0, 1]


def test_a_queue_that_nobody_uses_expires(channel, name):
    """With what is in it."""
    queue = Queue(name, expires=0.2)(channel)
    queue.declare()
    publish(channel, name, 1)

    def is_gone():
        channel._process.routing.sweep(limit=100)
        try:
            queue.queue_declare(passive=True)
        except ChannelError:
            return True
        return False

    assert until(is_gone)
    assert queue.get() is None


@pytest.mark.parametrize("value", [-1, "soon", 1.5])
def test_an_argument_out_of_range_is_refused(channel, name, value):
    with pytest.raises(ValueError, match=r"x-message-ttl is .*, but must be a whole number of milliseconds"):
        Queue(name, queue_arguments={"x-message-ttl": value})(channel).declare()


def test_an_argument_of_an_exchange_is_told(channel, name, caplog):
    """Nothing is done with any of them."""
    with caplog.at_level(logging.WARNING):
        Exchange(name, arguments={"alternate-exchange": "other"})(channel).declare()

    assert "does not support alternate-exchange" in caplog.text


def test_an_exchange_of_another_type_is_refused(connection, channel, name):
    """Messages would go elsewhere than its author expects; what stands goes on as it was."""
    Exchange(name, type="fanout")(channel).declare()
    queue = Queue(f"{name}-a", Exchange(name, type="fanout"))(channel)
    queue.declare()
    with pytest.raises(PreconditionFailed, match="of type fanout, not topic") as raised:
        Exchange(name, type="topic")(channel).declare()
    with pytest.raises((PreconditionFailed, OperationalError)):
        connection.Producer().publish(1, declare=[Exchange(name, type="topic")], retry=True, retry_policy={"max_retries": 1})

    assert isinstance(raised.value, connection.channel_errors)
    channel.Producer(Exchange(name, type="fanout")).publish("x")
    assert take_all(queue) == ["x"]


def test_an_exchange_of_a_type_that_we_have_not_is_refused(channel, name):
    with pytest.raises(ValueError, match="'headers' is not supported: use direct, topic, fanout"):
        Exchange(name, type="headers")(channel).declare()


@pytest.mark.parametrize(
    "odd",
    [
        "100%",
        "%s %(x)s %%",
        "sp ace",
        "ü☃" * 10,
        "quote'\"`",
        "back\\slash",
        "semi;colon",
        "x" * 255,
        "ü" * 127,
        "a.b-c:d/e",
        "_%",
    ],
)
def test_a_queue_may_have_any_name(connection, channel, odd, drain):
    """Up to 255 bytes; nothing in it means anything to SQL or to a driver."""
    queue = Queue(odd, Exchange(f"{odd[:100]}", type="topic"), routing_key=odd)(channel)
    queue.declare()
    other = Queue(odd[:-1] + ("x" if odd[-1] != "x" else "y"))(channel)
    other.declare()
    channel.Producer(queue.exchange).publish("by key", routing_key=odd)
    channel.Producer().publish("by name", routing_key=odd)
    got = []
    with channel.Consumer([queue], callbacks=[lambda body, message: (got.append(body), message.ack())]):
        drain(connection)

    assert got == ["by key", "by name"]
    assert other.get() is None
    publish(channel, odd, 1, 2)
    assert queue.purge() == 2
    queue.delete()
    with pytest.raises(ChannelError):
        queue.queue_declare(passive=True)


def test_a_name_or_key_that_is_too_long_is_refused(channel, name):
    """And nothing is stored."""
    with pytest.raises(ValueError, match="at most 255 fit"):
        publish(channel, "k" * 10_000, 1)
    with pytest.raises(ValueError, match="at most 255 fit"):
        Queue("q" * 256)(channel).declare()
    with pytest.raises(ValueError, match="at most 255 fit"):
        Queue(name, Exchange(name), routing_key="k" * 256)(channel).declare()
