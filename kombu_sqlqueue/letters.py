"""A message on its way to another broker: all that Kombu's producer would have told that one, kept as text."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kombu import Exchange, Queue, binding

from .envelope import as_text, from_text, that_fit
from .messages import NewMessage
from .outbox_store import OUTBOX, Outgoing

__all__ = ["Letter", "described", "entity"]

#: The kinds of entities that a letter may want declared before it is sent.
KINDS: dict[str, type[Queue | Exchange]] = {"queue": Queue, "exchange": Exchange}


@dataclass(frozen=True, slots=True)
class Letter:
    """What Kombu's ``prepare_message`` and ``basic_publish`` are given, and what is declared before."""

    body: str | bytes
    content: Mapping[str, Any]
    """The other arguments of ``prepare_message``."""
    address: Mapping[str, Any]
    """The arguments of ``basic_publish`` besides the message."""
    declare: Sequence[str] = ()
    """What there must be, as `described`: the same text for thousands of letters."""

    @property
    def is_task(self) -> bool:
        """Whether it asks for a task, rather than telling of an event, say."""
        return isinstance(self.content.get("headers"), Mapping) and "task" in self.content["headers"]

    def seal(self) -> NewMessage:
        """The message of the outbox. Raises TypeError or ValueError if a header, or a property of AMQP, is not JSON."""
        headers = self.content.get("headers") or {}
        body = self.body.encode("utf-8", "surrogatepass") if isinstance(self.body, str) else bytes(self.body)
        parts = {
            "content": {**self.content, "properties": _plain(self.content.get("properties") or {})},
            "address": self.address,
            "declare": self.declare,
            "text": isinstance(self.body, str),
        }
        return NewMessage(
            queue=OUTBOX,
            body=body,
            envelope=as_text(parts),
            task_id=_name(headers.get("id")),
            task=_name(headers.get("task")),
        )

    @classmethod
    def open(cls, message: Outgoing) -> Letter:
        """What was sealed. Raises ValueError, KeyError or TypeError if it is damaged."""
        parts = from_text(message.envelope)
        return cls(
            body=message.body.decode("utf-8", "surrogatepass") if parts["text"] else message.body,
            content=parts["content"],
            address=parts["address"],
            declare=parts["declare"],
        )


def _plain(properties: Mapping[str, Any]) -> dict[str, Any]:
    reply_to = properties.get("reply_to")
    named = {**properties, "reply_to": reply_to.name} if isinstance(reply_to, Queue) else properties
    return that_fit(named)


@functools.lru_cache(maxsize=1024)
def entity(text: str) -> Exchange | Queue:
    """What was `described`."""
    kind, fields = from_text(text)
    given = dict(fields)
    if given.get("exchange"):
        given["exchange"] = Exchange(**given["exchange"])
    if given.get("bindings"):
        given["bindings"] = [_binding(**each) for each in given["bindings"]]
    return KINDS[kind](**given)


def described(entity: Exchange | Queue) -> str:
    """An entity as text. Raises TypeError or ValueError if it has arguments that are not JSON."""
    kind = "exchange" if isinstance(entity, Exchange) else "queue"
    return as_text([kind, {name: value for name, value in entity.as_dict(recurse=True).items() if value is not None}])


def _binding(exchange: Mapping[str, Any] | None, **fields: Any) -> binding:
    return binding(Exchange(**exchange) if exchange else None, **fields)


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= 255 else None
