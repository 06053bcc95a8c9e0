"""Kombu's declarations of exchanges, queues and bindings, said to the routing store."""

from __future__ import annotations

import logging
from typing import Any

from amqp.exceptions import NotFound, PreconditionFailed
from amqp.protocol import queue_declare_ok_t
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from .errors import NotFoundError
from .options import Options
from .process import Process, process_for
from .routing import Binding, Exchange, Kind, Queue, QueueArguments, pack_arguments

__all__ = ["Declaring", "not_found"]

logger = logging.getLogger(__name__)


class Declaring(virtual.Channel):
    """The part of a channel that declares, binds, counts and deletes."""

    _options: Options

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._declared: set[str] = set()

    @property
    def _process(self) -> Process:
        return process_for(self._options.database)

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare the exchange.

        Raises kombu's ChannelError if it exists and is of another type, or if `passive` and it does not exist.
        """
        name = exchange or f"amq.{type or 'direct'}"
        if passive:
            if self._process.routing.exchange(name) is None:
                raise not_found(f"no exchange {name!r}", "Channel.exchange_declare")
            return
        wanted = Exchange(name, Kind.parse(type), durable, auto_delete, pack_arguments(arguments))
        standing = self._process.routing.declare_exchange(wanted)
        if standing.kind is not wanted.kind:
            raise PreconditionFailed(
                f"PRECONDITION_FAILED - exchange {name!r} is of type {standing.kind}, not {wanted.kind}:"
                " delete it first, or choose another name",
                (40, 10),
                "Channel.exchange_declare",
            )
        if wanted.arguments:
            logger.warning(
                "exchange %r: sqlqueue does not support %s", name, ", ".join(argument for argument, _ in wanted.arguments)
            )

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete the exchange and its bindings, not the queues."""
        self._process.routing.delete_exchange(exchange, if_unused=if_unused)
        self._process.routes.forget()

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        **kwargs: Any,
    ) -> queue_declare_ok_t:
        """Declare the queue; `passive` tells how much is in it instead, or raises kombu's ChannelError."""
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            if self._process.routing.queue(name) is None:
                raise not_found(f"no queue {name!r}", "Channel.queue_declare")
            return queue_declare_ok_t(name, self._size(name), self._process.routing.consumers(name))
        parsed = QueueArguments.parse(arguments or {})
        if parsed.unsupported:
            said = [f"{argument} ({instead})" if instead else argument for argument, instead in parsed.unsupported.items()]
            logger.warning("queue %r: sqlqueue does not support %s", name, ", ".join(said))
        if self._process.routing.declare_queue(Queue(name, durable, exclusive, auto_delete, parsed)):
            self._process.routes.forget()
        self._declared.add(name)
        # Counting messages costs more the fuller the queue is, and nobody who declares wants to know.
        return queue_declare_ok_t(name, 0, self._process.routing.consumers(name) if exclusive else 0)

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **kwargs: Any) -> dict[str, Any]:
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments or {}, **kwargs)
        return prepared

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Route what `exchange` gets under `routing_key` to `queue`."""
        try:
            bound = self._process.routing.bind(_binding(queue, exchange, routing_key, arguments))
        except NotFoundError as error:
            raise not_found(f"no queue {queue!r}", "Channel.queue_bind") from error
        if bound:
            self._process.routes.forget()

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._process.routing.unbind(_binding(queue, exchange, routing_key, arguments))
        self._process.routes.forget()

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete the queue with its bindings and what waits in it."""
        self._process.routing.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)
        self._process.routes.forget()

    def list_bindings(self) -> list[tuple[str, str, str]]:
        return [(b.queue, b.exchange, b.routing_key) for b in self._process.routing.bindings()]

    def _size(self, queue: str) -> int:
        return sum(counts.ready for counts in self._process.messages.counts([queue]))

    def _purge(self, queue: str) -> int:
        return self._process.messages.purge(queue)


def _binding(queue: str, exchange: str | None, routing_key: str | None, arguments: dict[str, Any] | None) -> Binding:
    return Binding(exchange or "amq.direct", queue, routing_key or "", pack_arguments(arguments))


def not_found(what: str, method: str) -> NotFound:
    return NotFound(f"NOT_FOUND - {what}", (50, 10), method)
