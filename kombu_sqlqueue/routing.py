"""Exchanges, queues and bindings as AMQP means them: frozen values and pure rules."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .errors import ConfigurationError

__all__ = [
    "NAME_BYTES",
    "Arguments",
    "Binding",
    "Exchange",
    "Kind",
    "Queue",
    "QueueArguments",
    "RoutingTable",
    "check_name",
    "pack_arguments",
    "topic_matches",
    "unpack_arguments",
]

#: How long a name or a routing key may be, in UTF-8. AMQP has the same limit, and three such
#: names together still fit into one index entry of every database.
NAME_BYTES = 255

#: Arguments nobody interprets, in order of name, each with the JSON text of its value.
Arguments = tuple[tuple[str, str], ...]

MILLISECOND = timedelta(milliseconds=1)

#: They tell RabbitMQ how to store a queue, which is no matter here.
_STORAGE = frozenset({"x-queue-type", "x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-ha-policy"})
#: Understood and kept, but nobody acts upon them, and what there is instead.
_WITHOUT_EFFECT = {
    "x-max-length": "a queue may grow as large as its database",
    "x-max-length-bytes": "a queue may grow as large as its database",
    "x-overflow": "a queue may grow as large as its database",
    "x-dead-letter-exchange": "rejected messages are kept as dead, see `celery sqlqueue dead`",
    "x-dead-letter-routing-key": "rejected messages are kept as dead, see `celery sqlqueue dead`",
    "x-dead-letter-strategy": "rejected messages are kept as dead, see `celery sqlqueue dead`",
    "x-delivery-limit": "the option max_reclaims bounds deliveries",
}


class Kind(enum.StrEnum):
    """How an exchange chooses among its bindings."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"

    @classmethod
    def parse(cls, name: str | None) -> Kind:
        """The kind of that name; none at all is direct. Raises ConfigurationError for any other."""
        try:
            return cls(name or cls.DIRECT)
        except ValueError as error:
            raise ConfigurationError(f"exchange type {name!r} is not supported: use {', '.join(cls)}") from error


@dataclass(frozen=True, slots=True)
class Exchange:
    """Where messages are published to. Raises ConfigurationError for a name that cannot be kept."""

    name: str
    kind: Kind = Kind.DIRECT
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = ()

    def __post_init__(self) -> None:
        check_name("exchange", self.name)


@dataclass(frozen=True, slots=True)
class QueueArguments:
    """What a declaration asks of a queue beside its name. Whatever has no field here is in `others`."""

    expires_for: timedelta | None = None
    message_ttl: timedelta | None = None
    max_priority: int | None = None
    max_length: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    others: Arguments = ()

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> QueueArguments:
        """The arguments as AMQP clients give them: durations are whole milliseconds.

        Raises ConfigurationError for a value out of range; it names the argument.
        """
        known = {}
        for name, (field, parse, wanted) in _PARSERS.items():
            value = given.get(name)
            if value is not None:
                known[field] = _parse(name, value, parse, wanted)
        others = {name: value for name, value in given.items() if name not in _PARSERS}
        return cls(**known, others=pack_arguments(others))

    def given(self) -> dict[str, Any]:
        """The arguments as they were given to `parse`."""
        values = unpack_arguments(self.others)
        for name, (field, _, _) in _PARSERS.items():
            value = getattr(self, field)
            if value is not None:
                values[name] = value // MILLISECOND if isinstance(value, timedelta) else value
        return values

    @property
    def unsupported(self) -> dict[str, str]:
        """The arguments that have no effect here, though their author expects one, each with what there is instead."""
        ignored = {name for name, _ in self.others if name not in _STORAGE} | (_WITHOUT_EFFECT.keys() & self.given().keys())
        return {name: _WITHOUT_EFFECT.get(name, "") for name in sorted(ignored)}

    def lifetime(self, of_message: timedelta | None) -> timedelta | None:
        """How long a message may wait in the queue: the shorter of its own time and the queue's."""
        limits = [limit for limit in (of_message, self.message_ttl) if limit is not None]
        return min(limits, default=None)

    def priority(self, of_message: int) -> int:
        """The priority that a message has in the queue: never above the queue's maximum."""
        return of_message if self.max_priority is None else min(of_message, self.max_priority)


@dataclass(frozen=True, slots=True)
class Queue:
    """Where messages wait. Raises ConfigurationError for a name that cannot be kept."""

    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: QueueArguments = QueueArguments()

    def __post_init__(self) -> None:
        check_name("queue", self.name)

    @property
    def dies_with_consumers(self) -> bool:
        """Whether the queue is deleted when its last consumer goes."""
        return self.auto_delete or self.exclusive

    @property
    def is_temporary(self) -> bool:
        """Whether the queue may be deleted without anyone saying so."""
        return self.dies_with_consumers or self.arguments.expires_for is not None


@dataclass(frozen=True, slots=True)
class Binding:
    """That a queue wants the messages of an exchange whose routing key suits this one."""

    exchange: str
    queue: str
    routing_key: str = ""
    arguments: Arguments = ()

    def __post_init__(self) -> None:
        check_name("exchange", self.exchange)
        check_name("queue", self.queue)
        check_name("routing key", self.routing_key, least=0)


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """The binding keys of one exchange, each with the queue it leads to."""

    kind: Kind
    entries: tuple[tuple[str, Queue], ...]

    def route(self, routing_key: str) -> list[Queue]:
        """The queues that want a message, each once, in order of name."""
        suits = _MATCHERS[self.kind]
        found = {queue.name: queue for binding_key, queue in self.entries if suits(binding_key, routing_key)}
        return [found[name] for name in sorted(found)]


def check_name(what: str, name: str, *, least: int = 1) -> None:
    """Raise ConfigurationError if no database can keep the name of `what`; the text says why."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{what} {name!r} is not valid text: {error.reason}") from error
    if length < least:
        raise ConfigurationError(f"the {what} has no name: give it one")
    if length > NAME_BYTES:
        raise ConfigurationError(
            f"{what} {name[:40]!r}... has {length} bytes in UTF-8, at most {NAME_BYTES} fit: shorten it"
        )
    if "\0" in name:
        raise ConfigurationError(f"{what} {name!r} contains a NUL character: leave it out")


def topic_matches(binding_key: str, routing_key: str) -> bool:
    """Whether a topic binding suits: ``*`` stands for one word, ``#`` for any number, none included."""
    pattern, words = _words(binding_key), _words(routing_key)
    at = word = 0
    hash_at, hash_word = -1, 0
    while word < len(words):
        if at < len(pattern) and pattern[at] == "#":
            hash_at, hash_word = at, word
            at += 1
        elif at < len(pattern) and pattern[at] in ("*", words[word]):
            at, word = at + 1, word + 1
        elif hash_at >= 0:
            # Only the last # need take one word more: an earlier one could gain nothing by it.
            hash_word += 1
            at, word = hash_at + 1, hash_word
        else:
            return False
    return all(rest == "#" for rest in pattern[at:])


def pack_arguments(given: Mapping[str, Any] | None) -> Arguments:
    """The arguments as a value that can be compared. What JSON does not know is kept as text."""
    return tuple((name, json.dumps(value, sort_keys=True, default=str)) for name, value in sorted((given or {}).items()))


def unpack_arguments(packed: Arguments) -> dict[str, Any]:
    """The arguments as a dictionary again."""
    return {name: json.loads(text) for name, text in packed}


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


_MATCHERS: dict[Kind, Callable[[str, str], bool]] = {
    Kind.DIRECT: lambda binding_key, routing_key: binding_key == routing_key,
    Kind.TOPIC: topic_matches,
    Kind.FANOUT: lambda binding_key, routing_key: True,
}


def _parse(name: str, value: Any, parse: Callable[[Any], Any], wanted: str) -> Any:
    try:
        return parse(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"queue argument {name} is {value!r}, but must be {wanted}") from error


def _whole(least: int, most: int | None = None) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or int(value) != value or value < least or (most is not None and value > most):
            raise ValueError(value)
        return int(value)

    return parse


def _milliseconds(least: int) -> Callable[[Any], timedelta]:
    whole = _whole(least)
    return lambda value: whole(value) * MILLISECOND


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    check_name("dead letter target", value, least=0)
    return value


#: Each argument of AMQP with the field it fills, what parses it, and what to tell who got it wrong.
_PARSERS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "x-expires": ("expires_for", _milliseconds(1), "a whole number of milliseconds, 1 or more"),
    "x-message-ttl": ("message_ttl", _milliseconds(0), "a whole number of milliseconds, 0 or more"),
    "x-max-priority": ("max_priority", _whole(0, 255), "a whole number from 0 to 255"),
    "x-max-length": ("max_length", _whole(0), "a whole number, 0 or more"),
    "x-dead-letter-exchange": ("dead_letter_exchange", _name, "the name of an exchange"),
    "x-dead-letter-routing-key": ("dead_letter_routing_key", _name, "a routing key"),
}
