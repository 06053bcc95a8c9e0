"""The contract of the store of exchanges, queues and bindings. The conformance suite proves it.

Every process sees what any process declared. Each method is one transaction of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from .routing import Binding, Exchange, Queue, RoutingTable

__all__ = ["RoutingStore"]


class RoutingStore(Protocol):
    """Exchanges, queues and bindings, and who consumes from which queue.

    Declaring what exists already only reads, so that it costs little to do it again and again.
    """

    # -- exchanges ------------------------------------------------------------------------

    def declare_exchange(self, exchange: Exchange) -> Exchange:
        """Make sure that there is an exchange of that name; the answer is the one that stands.

        An existing exchange is not changed: whoever cares compares it with the answer.
        """

    def exchange(self, name: str) -> Exchange | None:
        """The declared exchange, None if there is none."""

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> bool:
        """Delete the exchange and its bindings, not the queues they lead to.

        With `if_unused` an exchange that has bindings is spared. The answer is False if it was
        spared; to delete what does not exist is no error.
        """

    # -- queues ---------------------------------------------------------------------------

    def declare_queue(self, queue: Queue) -> bool:
        """Make sure that there is this queue, and use it; True if anything was changed.

        A queue that was declared otherwise is changed to this: its messages and bindings stay.
        """

    def queue(self, name: str) -> Queue | None:
        """The declared queue, None if there is none."""

    def queues(self) -> list[Queue]:
        """All declared queues, in order of name."""

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int | None:
        """Delete the queue, its bindings, and what waits in it; the answer is how many messages.

        What is leased is left to its holders. With `if_unused` a queue that has consumers is
        spared, with `if_empty` one in which messages wait, ready or delayed: then the answer is
        None. To delete what does not exist is no error.
        """

    # -- bindings and routes --------------------------------------------------------------

    def bind(self, binding: Binding) -> bool:
        """Make sure that there is this binding; True if anything was changed.

        One of a topic exchange is announced, as `ROUTES`.
        The exchange need not be declared. Raises NotFoundError if the queue is not.
        """

    def unbind(self, binding: Binding) -> bool:
        """Delete the binding; False if there was none.

        An auto-delete exchange goes with its last binding, however it went.
        """

    def bindings(self, exchange: str | None = None) -> list[Binding]:
        """The bindings of the exchange, or of all exchanges, in order of exchange, queue and key."""

    def table(self, exchange: str, routing_key: str) -> RoutingTable:
        """Where messages of this routing key go: of a direct exchange no other keys are told.

        An exchange that nobody declared is direct. The queues are as they are declared now.
        """

    def route(self, exchange: str, routing_key: str) -> list[Queue]:
        """The queues that want the message, each once, in order of name.

        The default exchange, whose name is empty, leads to the queue that the key names, be it
        declared or not. Raises ConfigurationError if no queue can have that name.
        """

    # -- consumers ------------------------------------------------------------------------

    def consume(self, queue: str, lessee: int) -> bool:
        """The lessee has one more consumer of the queue, be it declared or not; the answer tells which.

        A queue with consumers is in use. The consumers of a lessee that has been taken for dead
        or has resigned count no longer: a process that enrols anew says again what it consumes.
        """

    def cancel(self, queue: str, lessee: int) -> bool:
        """The lessee has one consumer of the queue less.

        If nobody consumes any more, an auto-delete or exclusive queue is deleted with all its
        messages that are not started, leased ones too; then the answer is True.
        """

    def consumers(self, queue: str) -> int:
        """How many consumers the queue has in all processes."""

    def touch(self, queues: Collection[str]) -> None:
        """These queues have been used just now. One that expires but has consumers needs no touch."""

    def sweep(self, *, limit: int) -> list[str]:
        """Delete queues that nobody misses, up to `limit`; the answer names them in order.

        These are the ones unused for longer than they expire for, and auto-delete and exclusive
        ones whose last consumer was lost with its process, unless somebody has just declared them
        again; not those that never had a consumer.
        Their messages that are not started go with them, leased ones too. Two that sweep at once
        do not wait for each other.
        """
