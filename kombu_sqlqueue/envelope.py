"""Kombu's message dict, and what is stored of it. Nobody else knows that dict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kombu.utils.json import dumps, loads

from .messages import Delivery, NewMessage
from .routing import Queue, check_name

__all__ = ["MAX_PRIORITY", "ORIGIN", "OWNER", "Envelope", "as_bytes", "as_text", "from_text", "pack", "that_fit", "unpack"]

#: As in AMQP, where a priority is one byte.
MAX_PRIORITY = 255

#: The property that tells which tables a delivery came from: its tag means something only there.
ORIGIN = "sqlqueue_origin"

#: The header that names what a task is a part of. Acks do not settle its message while it runs: who owns it does.
OWNER = "sqlqueue_owner"

#: The properties that AMQP has. RabbitMQ drops any other, and with it whatever object a caller put there.
AMQP_PROPERTIES = frozenset(
    {
        "app_id",
        "cluster_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "delivery_mode",
        "expiration",
        "message_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
        "user_id",
    }
)
#: What a message that is published again carries of how it was delivered before, perhaps by another
#: broker: which of its copies that was, and how the broker had wrapped a body that is unwrapped by now.
_OF_ANOTHER_DELIVERY = frozenset({"delivery_info", "delivery_tag", "body_encoding", ORIGIN})

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_JSON = "application/json"
_MARK = '"__type__"'
#: AMQP's delivery mode of a message that need not survive.
_TRANSIENT = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message dict, ready to be stored in any number of queues."""

    body: bytes
    text: str
    priority: int
    due_at: int | None
    expires_in: timedelta | None
    task_id: str | None
    task: str | None
    owner: str | None
    retries: int
    transient: bool

    @property
    def size(self) -> int:
        """Bytes, as `max_message_bytes` counts them."""
        return len(self.body) + len(self.text)

    def addressed(self, queue: Queue) -> NewMessage:
        """The message for one queue, which may bound its priority and how long it lives."""
        return NewMessage(
            queue=queue.name,
            body=self.body,
            envelope=self.text,
            priority=queue.arguments.priority(self.priority),
            due_at=self.due_at,
            # Whoever owns it waits for its end.
            expires_in=None if self.owner else queue.arguments.lifetime(self.expires_in),
            task_id=self.task_id,
            task=self.task,
            owner=self.owner,
            transient=self.transient,
        )


def pack(message: Mapping[str, Any], exchange: str, routing_key: str, *, lower_first: bool) -> Envelope:
    """What to store of `message`.

    The body is kept as it came; headers and properties become JSON. A task's ``eta`` is when it
    is due. Its ``expires`` is left to the worker, which records it as revoked; for any other
    message the property ``expiration`` (milliseconds) says how long it lives. With `lower_first`
    the lower priority number is served first.

    Raises TypeError or ValueError if a header, or a property that AMQP has, does not fit into JSON;
    another property that does not fit is left out.
    """
    properties = {name: value for name, value in message["properties"].items() if name not in _OF_ANOTHER_DELIVERY}
    properties["delivery_info"] = {"exchange": exchange, "routing_key": routing_key}
    headers = message.get("headers") or {}
    stored = {
        "headers": headers,
        "properties": properties,
        "content-type": message.get("content-type"),
        "content-encoding": message.get("content-encoding"),
    }
    try:
        text = as_text(stored)
    except (TypeError, ValueError):
        text = as_text({**stored, "properties": that_fit(properties)})
    task = _task_fields(message, headers)
    for name in ("id", "task"):
        if isinstance(task.get(name), str):
            check_name(f"task {name}", task[name])
    if OWNER in headers:
        check_name("owner", headers[OWNER])
    return Envelope(
        body=as_bytes(message["body"]),
        text=text,
        priority=_priority(properties, lower_first=lower_first),
        due_at=_instant(task.get("eta")),
        expires_in=None if task else _expiration(properties),
        task_id=task.get("id"),
        task=task.get("task"),
        owner=headers.get(OWNER),
        retries=task.get("retries") or 0,
        # Events, remote commands and the answers to them. A task is kept, whatever its mode.
        transient=not task and properties.get("delivery_mode") == _TRANSIENT,
    )


def unpack(delivery: Delivery, *, origin: str) -> dict[str, Any]:
    """The message dict of a delivery from the tables `origin`, its tag the lease. Raises ValueError if it is damaged."""
    payload: dict[str, Any] = from_text(delivery.envelope)
    properties = payload["properties"]
    properties["delivery_tag"] = delivery.lease.tag
    properties[ORIGIN] = origin
    properties["delivery_info"]["redelivered"] = delivery.redelivered
    payload["body"] = delivery.body
    _let_begin(payload["headers"])
    return payload


def _let_begin(headers: dict[str, Any]) -> None:
    """It is due, the database says so: a worker whose clock is slow shall not wait for the ETA once more."""
    due_at = _instant(headers.get("eta"))
    if due_at is not None:
        now = datetime.now(UTC)
        if due_at > (now - _EPOCH) // timedelta(microseconds=1):
            headers["eta"] = now.isoformat()


def from_text(text: str) -> Any:
    """What was written by Kombu's JSON serializer."""
    # What it knows beyond JSON, such as a datetime, is marked so; without a mark this is twice as quick.
    return loads(text) if _MARK in text else json.loads(text)


def as_text(value: Any) -> str:
    """The value as Kombu's JSON. Raises TypeError or ValueError if it does not fit."""
    return str(dumps(value, separators=(",", ":")))


def as_bytes(body: Any) -> bytes:
    """What a serializer made, as it is stored."""
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)


def that_fit(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties without those that neither AMQP has nor JSON can say."""
    return {name: value for name, value in properties.items() if name in AMQP_PROPERTIES or _fits(value)}


def _fits(value: Any) -> bool:
    try:
        as_text(value)
    except (TypeError, ValueError):
        return False
    return True


def _task_fields(message: Mapping[str, Any], headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a task message, empty for any other message.

    Protocol 2 has them in the headers, protocol 1 in the body.
    """
    if "task" in headers:
        return headers
    if message.get("content-type") == _JSON and isinstance(message["body"], str):
        try:
            fields = loads(message["body"])
        except ValueError:
            return {}
        if isinstance(fields, dict) and "task" in fields and "id" in fields:
            return fields
    return {}


def _priority(properties: Mapping[str, Any], *, lower_first: bool) -> int:
    try:
        priority = max(0, min(MAX_PRIORITY, int(properties.get("priority") or 0)))
    except (TypeError, ValueError, OverflowError):
        priority = 0
    return -priority if lower_first else priority


def _instant(eta: Any) -> int | None:
    """An ISO 8601 time, UTC if it does not say otherwise, in microseconds."""
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
    except ValueError:
        return None  # the worker reports it when it reads the same header
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _expiration(properties: Mapping[str, Any]) -> timedelta | None:
    expiration = properties.get("expiration")
    return None if expiration in (None, "") else timedelta(milliseconds=float(expiration))
