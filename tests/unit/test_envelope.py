"""What is stored of a message, and what a delivery tells of where it came from."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest

from kombu_sqlqueue.envelope import ORIGIN, pack, unpack
from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.messages import Delivery, Lease
from kombu_sqlqueue.options import DatabaseOptions

TASK = {"body": "[]", "headers": {"task": "add", "id": "1"}, "properties": {}, "content-type": "application/json"}


def test_a_delivery_tells_which_tables_its_tag_belongs_to():
    """And does not pass it on: published again, the message belongs to the tables it goes to."""
    envelope = pack(TASK, "", "celery", lower_first=False)
    message = unpack(Delivery(Lease(7, 2), "celery", 0, envelope.body, envelope.text, 0), origin="here")
    assert message["properties"][ORIGIN] == "here"
    assert message["properties"]["delivery_tag"] == "7:2"

    again = pack(message, "", "celery", lower_first=False)
    assert "here" not in again.text
    assert "7:2" not in again.text


def test_how_another_broker_delivered_a_message_is_forgotten():
    """The body is unwrapped by then, and what the broker noted of that delivery may be larger than the body."""
    info = {"exchange": "", "routing_key": "old", "sqs_message": {"Body": "x" * 100}}
    properties = {"body_encoding": "base64", "delivery_info": info, "delivery_tag": "some tag", "correlation_id": "c"}
    envelope = pack({**TASK, "properties": properties}, "", "celery", lower_first=False)
    message = unpack(Delivery(Lease(7, 1), "celery", 0, envelope.body, envelope.text, 0), origin="here")

    assert message["properties"].pop("delivery_info") == {"exchange": "", "routing_key": "celery", "redelivered": False}
    assert message["properties"] == {"correlation_id": "c", "delivery_tag": "7:1", ORIGIN: "here"}


def test_headers_that_are_more_than_json_come_back_as_they_were():
    """Kombu marks them in its JSON; what only looks like its mark is text."""
    moment = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
    headers = {**TASK["headers"], "moment": moment, "amount": Decimal("1.10"), "text": '{"__type__": "decimal"}'}
    for given in (headers, {**TASK["headers"], "text": '{"__type__": "decimal"}'}):
        envelope = pack({**TASK, "headers": given}, "", "celery", lower_first=False)
        message = unpack(Delivery(Lease(7, 1), "celery", 0, envelope.body, envelope.text, 0), origin="here")
        assert message["headers"] == given


def test_tables_elsewhere_have_another_origin():
    """Another database, schema or prefix; the password makes no difference."""
    url = "postgresql+psycopg://user:one@host/db"
    here = DatabaseOptions(url)
    others = [DatabaseOptions(url, schema="a"), DatabaseOptions(url, table_prefix="b_"), DatabaseOptions(url + "2")]

    assert here.origin == DatabaseOptions(url.replace("one", "two")).origin
    assert here.origin not in {other.origin for other in others}


@pytest.mark.parametrize("id", ["x" * 300, "a\0b", "\ud800"])
def test_a_task_id_that_no_database_can_keep_is_refused(id: str):
    """With an error that says so."""
    with pytest.raises(ConfigurationError, match="task id"):
        pack({**TASK, "headers": {"task": "add", "id": id}}, "", "celery", lower_first=False)


def test_an_endless_priority_is_none():
    """What is no number counts as the default."""
    assert pack({**TASK, "properties": {"priority": float("inf")}}, "", "celery", lower_first=False).priority == 0


def test_an_object_among_the_properties_is_left_out_if_amqp_has_no_such_property():
    """RabbitMQ drops it, too: a publish that works there works here. What fits is kept, what AMQP has is never dropped."""
    given = {"signal": object(), "circle": circle(), "mine": {"fits": 1}, "correlation_id": "c"}
    envelope = pack({**TASK, "properties": given}, "", "celery", lower_first=False)
    properties = unpack(Delivery(Lease(7, 1), "celery", 0, envelope.body, envelope.text, 0), origin="here")["properties"]
    assert properties.keys() == {"mine", "correlation_id", "delivery_info", "delivery_tag", ORIGIN}
    assert properties["mine"] == {"fits": 1}

    with pytest.raises(TypeError):
        pack({**TASK, "properties": {"correlation_id": object()}}, "", "celery", lower_first=False)
    with pytest.raises(TypeError):
        pack({**TASK, "headers": {**TASK["headers"], "thing": object()}}, "", "celery", lower_first=False)


def circle() -> list[object]:
    round_and_round: list[object] = []
    round_and_round.append(round_and_round)
    return round_and_round


@pytest.mark.parametrize(("away", "changes"), [(3600, True), (-3600, False)])
def test_a_task_that_is_delivered_is_due_whatever_the_workers_clock_says(away: int, changes: bool):
    """Celery would hold it until its ETA by that clock, if it is slow. One that is not keeps the ETA as it was sent."""
    now = datetime.datetime.now(datetime.UTC)
    eta = (now + datetime.timedelta(seconds=away)).isoformat()
    envelope = pack({**TASK, "headers": {**TASK["headers"], "eta": eta}}, "", "celery", lower_first=False)
    message = unpack(Delivery(Lease(7, 1), "celery", 0, envelope.body, envelope.text, 0), origin="here")
    told = datetime.datetime.fromisoformat(message["headers"]["eta"])

    assert (told != datetime.datetime.fromisoformat(eta)) == changes
    assert told <= datetime.datetime.now(datetime.UTC)
