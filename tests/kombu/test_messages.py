"""What is published arrives as it was: bodies, headers, properties."""

from __future__ import annotations

import datetime
import decimal
import os
import uuid

import pytest
from kombu import Consumer, Exchange, Queue
from kombu.exceptions import ContentDisallowed


def send_and_get(channel, name, body, *, accept=None, **options):
    """The message that comes out of a queue after `body` went in."""
    queue = Queue(name)(channel)
    queue.declare()
    channel.Producer().publish(body, routing_key=name, **options)
    return queue.get(accept=accept)


@pytest.mark.parametrize(
    "body",
    [
        {"a": [1, 2.5, None, True, {"b": []}]},
        "",
        "text with a \0, a \"quote\", a 'tick', a \\ and a %s",
        "\U0001f600 é ß 漢字 \u202e",
        [],
        "x" * 5_000_000,
    ],
    ids=["nested", "empty", "nul and quotes", "emoji", "empty list", "5 MB"],
)
def test_a_json_body_comes_back_equal(channel, name, body):
    message = send_and_get(channel, name, body, serializer="json")

    assert message.payload == body
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")


@pytest.mark.parametrize(
    "body",
    [
        uuid.UUID(int=7),
        decimal.Decimal("1.10"),
        datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC),
    ],
)
def test_what_kombus_json_knows_comes_back_as_it_was(channel, name, body):
    assert send_and_get(channel, name, body, serializer="json").payload == body


@pytest.mark.parametrize("serializer", ["pickle", "msgpack", "yaml"])
def test_other_serializers_work(channel, name, serializer):
    pytest.importorskip({"msgpack": "msgpack", "yaml": "yaml"}.get(serializer, "pickle"))
    body = {"n": 1, "text": "é\0", "list": [1, 2]}
    message = send_and_get(channel, name, body, serializer=serializer, accept=[serializer])

    assert message.payload == body


def test_a_pickle_is_refused_unless_accepted(channel, name):
    message = send_and_get(channel, name, {"n": 1}, serializer="pickle", accept=["json"])

    with pytest.raises(ContentDisallowed):
        message.decode()


@pytest.mark.parametrize("body", [b"", b"\0\x80\xff\xfe raw", os.urandom(5_000_000)], ids=["empty", "short", "5 MB"])
def test_bytes_come_back_equal(channel, name, body):
    message = send_and_get(
        channel, name, body, content_type="application/data", content_encoding="binary", accept=["application/data"]
    )

    assert (message.body or b"") == body


def test_text_that_was_serialized_by_the_user_comes_back_equal(channel, name):
    message = send_and_get(channel, name, '{"n": "é"}', content_type="application/json", content_encoding="utf-8")

    assert message.payload == {"n": "é"}


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "lzma"])
def test_a_compressed_body_comes_back_equal(channel, name, compression):
    body = {"text": "again and again " * 1000}
    message = send_and_get(channel, name, body, compression=compression)

    assert message.payload == body
    assert len(message.body) < 5000 or "compression" in message.headers


def test_headers_come_back_equal(channel, name):
    headers = {"n": 1, "text": "é\0", "nested": {"a": [None, True]}, "empty": ""}
    message = send_and_get(channel, name, "x", headers=headers)

    assert {key: message.headers[key] for key in headers} == headers


def test_properties_come_back_equal(channel, name):
    message = send_and_get(
        channel, name, "x", correlation_id="c1", reply_to="r1", message_id="m1", delivery_mode=1, priority=3, app_id="a"
    )
    properties = message.properties

    assert properties["correlation_id"] == "c1"
    assert properties["reply_to"] == "r1"
    assert properties["message_id"] == "m1"
    assert properties["app_id"] == "a"
    assert properties["priority"] == 3
    assert properties["delivery_mode"] == 1


def test_delivery_info_tells_where_it_was_published(channel, name):
    exchange = Exchange(f"x-{name}", type="direct")
    queue = Queue(name, exchange, routing_key="k")(channel)
    queue.declare()
    channel.Producer(exchange).publish("x", routing_key="k")
    info = queue.get().delivery_info

    assert (info["exchange"], info["routing_key"]) == (exchange.name, "k")
    assert not info.get("redelivered")


def test_a_publish_leaves_the_callers_headers_alone(channel, name):
    headers = {"a": 1}
    send_and_get(channel, name, "x", headers=headers)

    assert headers == {"a": 1}


def test_a_message_may_be_published_again_by_its_consumer(connection, channel, name, drain):
    """As retries and forwarders do: body and headers of one message become another."""
    queue = Queue(name)(channel)
    queue.declare()
    producer = channel.Producer()
    got = []

    def forward(body, message):
        got.append(body)
        if len(got) == 1:
            producer.publish(
                message.body,
                routing_key=name,
                headers=message.headers,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
            )
        message.ack()

    producer.publish({"n": "é"}, routing_key=name)
    with Consumer(channel, [queue], callbacks=[forward]):
        drain(connection)

    assert got == [{"n": "é"}] * 2
