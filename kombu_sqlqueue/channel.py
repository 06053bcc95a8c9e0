"""Kombu's channel: translation between its calls and the stores, and nothing else.

A channel owns no connection. Acks arrive from any thread, also after the channel was closed, and
count as long as the lease is held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.exceptions import EncodeError

from .ahead import Ahead
from .batching import current_batch
from .declaring import Declaring, not_found
from .envelope import MAX_PRIORITY, pack, unpack
from .errors import ConfigurationError, MessageTooBigError, SQLQueueError
from .keeper import LeaseKeeper
from .messages import Delivery, Lease, NewMessage, Outcome, Reason
from .pidbox import command_in
from .qos import QoS
from .retrying import Replaced, replaced_by
from .revoking import revocations_in
from .topics import topic_name

if TYPE_CHECKING:
    from .transport import Transport

__all__ = ["Channel"]

logger = logging.getLogger(__name__)

#: Seconds after which a loop that delivers, where tasks run within it, looks at what else there is.
DELIVER_FOR = 0.02


class Channel(Declaring):
    """One channel of a connection."""

    supports_fanout = True
    do_restore = False
    max_priority = MAX_PRIORITY
    connection: Transport
    closed: bool
    _qos: QoS | None

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._options = connection.options
        self._origin = connection.options.database.origin
        self._poke = connection.poke
        self._receivers: dict[str, Callable[[Delivery], object]] = {}
        self._no_ack: set[str] = set()
        self._queue_of: dict[str, str] = {}
        self._ahead = Ahead()
        self._begun: set[str] = set()
        self._started: set[str] = set()
        self._owned: set[str] = set()
        #: Tags of owned messages that have ended before their ack, which Celery may leave to its event loop.
        self._awaiting_ack: set[str] = set()
        self._look_at = 0.0
        #: The last claim got all that it asked for.
        self.has_more = False

    @property
    def _keeper(self) -> LeaseKeeper:
        return self._process.keeper(self._options)

    # -- publishing -----------------------------------------------------------------------

    @property
    def max_message_bytes(self) -> int | None:
        """The option."""
        return self._options.max_message_bytes

    @property
    def is_in_transaction(self) -> bool:
        """Whether what is published now takes part in a transaction of the caller's."""
        return self._process.database.in_transaction or self._process.require_loan() is not None

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Store the message in every queue it is routed to, durably, before returning.

        Raises MessageTooBigError past the option `max_message_bytes`, kombu's EncodeError if a header
        or property cannot be stored.
        """
        try:
            envelope = pack(message, exchange or "", routing_key or "", lower_first=self._options.priority_order == "asc")
        except (TypeError, ValueError) as error:
            raise EncodeError(
                f"the message cannot be stored, a header or property does not fit into JSON: {error}"
            ) from error
        limit = self._options.max_message_bytes
        if limit is not None and envelope.size > limit:
            raise MessageTooBigError(
                f"the message has {envelope.size} bytes, max_message_bytes allows {limit}: pass a reference to the data instead"
            )
        queues = self._process.routes.route(exchange or "", routing_key or "", transient=envelope.transient)
        messages = [envelope.addressed(queue) for queue in queues]
        if not messages and envelope.task_id and not envelope.transient:
            logger.warning(
                "task %s[%s] goes nowhere: no queue is bound to exchange %r for routing key %r",
                *(envelope.task, envelope.task_id, exchange, routing_key),
            )
        command = command_in(exchange, message) if exchange else None
        if command:
            self._command(command, messages)
        elif messages:
            self._publish(messages, replaced_by(envelope, origin=self._origin, tracks_started=self.tracks_started))

    def _command(self, command: Mapping[str, Any], messages: list[NewMessage]) -> None:
        revocations = revocations_in(command)
        if revocations:
            self._process.require_loan()
            with self._process.database.transaction():
                self._process.revocations.revoke(revocations)
                self._process.messages.publish(messages)
        else:
            # Whoever asks workers something waits for the answer, and not for a commit.
            self._process.publish_at_once(messages)

    def _publish(self, messages: list[NewMessage], replaced: Replaced | None) -> None:
        if replaced is not None:
            if not self._process.messages.publish(messages, replaces=replaced.lease, if_gone=replaced.if_gone):
                logger.warning(
                    "a retry was not sent: its task has retried before, or its lease was lost and another worker ran it"
                )
            return
        loan = self._process.require_loan()
        if loan is not None:
            loan.note(message.task_id for message in messages if message.task_id)
            self._remember_nothing()
        batch = current_batch()
        if batch is not None and (batch.is_within or not self._process.database.in_transaction):
            batch.add(self._process.messages, messages)
        else:
            self._process.messages.publish(messages)

    def _remember_nothing(self) -> None:
        """Where a declaration had to take part in the caller's transaction it may vanish with that: declare again next time."""
        if not self._process.database.has_writers:
            self.connection.client.declared_entities.clear()
            self._process.routes.forget()

    # -- consuming ------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Deliver the queue's messages to `callback`, settled at once with `no_ack`."""

        def receive(delivery: Delivery) -> None:
            message = self._message(delivery, no_ack=no_ack)
            if message is not None:
                callback(message)

        self._receivers[queue] = receive
        if no_ack:
            self._no_ack.add(queue)
        self._queue_of[consumer_tag] = queue
        self._consumers.add(consumer_tag)
        self._active_queues.append(queue)
        if not self._keeper.consume(queue) and queue in self._declared:
            raise not_found(f"queue {queue!r} was deleted meanwhile", "Channel.basic_consume")
        self._keeper.mind(self._ahead)
        self.connection.consumers_changed()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Deliver nothing more to this consumer and give back what waits for it."""
        queue = self._queue_of.pop(consumer_tag, None)
        if queue is None:
            return
        self._consumers.discard(consumer_tag)
        self._active_queues.remove(queue)
        if queue not in self._active_queues:
            self._receivers.pop(queue, None)
            self._no_ack.discard(queue)
            self._give_back(lambda delivery: delivery.queue == queue)
        self._keeper.cancel(queue)
        if self.connection is not None:
            self.connection.consumers_changed()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """One message of the queue, or None."""
        self._process.routing.touch([queue])
        for delivery in self._keeper.claim([queue], 1):
            return self._message(delivery, no_ack=no_ack)
        return None

    @property
    def room(self) -> int:
        """How many messages may be claimed for this channel now."""
        return max(0, self.qos.can_consume_max_estimate() - len(self._ahead)) if self._consumers else 0

    @property
    def wants(self) -> bool:
        """Whether `fetch` would claim.

        After a claim that found all there was the next one waits a while, unless `look` was called:
        a worker busy with its tasks would otherwise ask for remote commands at every turn.
        """
        return not self._ahead and self.room > 0 and time.monotonic() >= self._look_at

    def fetch(self) -> int:
        """Claim what fits into the window and what its consumers are about to start; the answer is how many came."""
        limit = self._ahead.limit(self.room)
        deliveries = self._keeper.claim(self._active_queues, limit)
        self.has_more = len(deliveries) == limit
        self._look_at = 0.0 if self.has_more else time.monotonic() + self.connection.look_again_after
        self._ahead.put(deliveries)
        return len(deliveries)

    @property
    def is_quick(self) -> bool:
        """Whether its tasks are so short that what is written of them can wait for the next batch."""
        return self._ahead.is_quick

    def look(self, names: Container[str] | None = None) -> None:
        """Something may be ready in the queues that topics call so, or in any: let the next `fetch` claim."""
        if names is None or any(topic_name(queue) in names for queue in self._active_queues):
            self._look_at = 0.0

    def make_room(self) -> None:
        """A slot is free: claim what it can take."""
        self.look()
        self._poke()

    def deliver_next(self) -> bool:
        """Hand one claimed message to its consumer; False if there is none, or no room."""
        delivery = self._ahead.take() if self._ahead and self.qos.can_consume() else None
        if delivery is None:
            return False
        receive = self._receivers.get(delivery.queue)
        if receive is None:
            self._keeper.release([delivery.lease])
        else:
            receive(delivery)
        return True

    def deliver_some(self) -> bool:
        """Hand claimed messages to consumers that ack, as far as there is room, for a moment; or one to another."""
        delivered = False
        until = time.monotonic() + DELIVER_FOR
        while (first := self._ahead.first) is not None:
            alone = first.queue in self._no_ack
            if (alone and delivered) or not self.deliver_next():
                break
            delivered = True
            if alone or time.monotonic() > until:
                break
        return delivered

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one message. Raises Empty if none is ready."""
        self.look()
        if not self.deliver_next() and not (self.wants and self.fetch() and self.deliver_next()):
            raise Empty

    def _message(self, delivery: Delivery, *, no_ack: bool) -> Any:
        try:
            message = self.Message(unpack(delivery, origin=self._origin), channel=self)
        except (ValueError, KeyError, TypeError):
            logger.exception("message %s of queue %r is damaged; it is kept as dead", delivery.lease.tag, delivery.queue)
            self._keeper.bury(delivery.lease, Reason.UNDECODABLE)
            return None
        if no_ack:
            self._keeper.ack(delivery.lease)
        else:
            self.qos.append(message, message.delivery_tag)
        return message

    # -- settling -------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge; for a task that is running and may not run again, only mark it as started."""
        lease = Lease.parse(delivery_tag)
        if lease is None:
            return
        if delivery_tag in self._begun:
            self._started.add(delivery_tag)
            self._keeper.start(lease)
        elif delivery_tag in self._awaiting_ack:
            self._awaiting_ack.discard(delivery_tag)
        elif delivery_tag not in self._owned:
            self._keeper.ack(lease)
        self._left_window(delivery_tag)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put back, ready at once, or set aside as dead."""
        if not requeue:
            self.set_aside(delivery_tag, Reason.REJECTED)
            return
        self._awaiting_ack.discard(delivery_tag)
        lease = Lease.parse(delivery_tag)
        if lease is not None and self._keeper.nack(lease) is Outcome.DEAD:
            logger.error("message %s was put back too often; it is dead now", delivery_tag)
        self.look()
        self._left_window(delivery_tag)

    def set_aside(self, delivery_tag: str, reason: Reason) -> None:
        """Keep as dead what no worker can do anything with."""
        self._awaiting_ack.discard(delivery_tag)
        lease = Lease.parse(delivery_tag)
        if lease is not None:
            self._keeper.bury(lease, reason)
        self._left_window(delivery_tag)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back every unacked message."""
        self._keeper.release([lease for tag in self.qos.take_all() if (lease := Lease.parse(tag))])
        self.look()

    def begin(self, delivery_tag: str, *, early: bool, at_once: bool, owned: bool = False) -> None:
        """The task of this message runs from now.

        If it is acked `early`, an ack before `end` means that it may not run again; of a message that is `owned` an
        ack means nothing before that. Told `at_once`, the database knows before this returns: our thread will be busy
        with the task.
        """
        lease = Lease.parse(delivery_tag)
        if lease is None:
            return
        if owned:
            self._owned.add(delivery_tag)
            early = False
        if early and self.tracks_started:
            self._begun.add(delivery_tag)
        if not early:
            self._keeper.begin(lease)
        elif at_once and self.tracks_started:
            self._keeper.start(lease)
        if at_once:
            try:
                self._keeper.settler.flush()
            except SQLQueueError:
                self._keeper.never_began(lease)
                raise

    def end(self, delivery_tag: str, *, well: bool) -> None:
        """The task of this message has ended; an early ack is completed, one still to come is a plain one.

        Whoever owns a message has settled it by now, save for one whose process died: that is put back.
        """
        self._begun.discard(delivery_tag)
        if delivery_tag in self._owned:
            self._end_owned(delivery_tag, well=well)
        if delivery_tag in self._started:
            self._started.discard(delivery_tag)
            lease = Lease.parse(delivery_tag)
            if lease is not None and self._keeper.holds(lease):
                self._keeper.ack(lease)

    def _end_owned(self, delivery_tag: str, *, well: bool) -> None:
        self._owned.discard(delivery_tag)
        if delivery_tag in self.qos.tags():
            self._awaiting_ack.add(delivery_tag)
        lease = Lease.parse(delivery_tag)
        if lease is None or not self._keeper.holds(lease):
            return
        if well:
            self._keeper.forget(lease)
        elif self._keeper.nack(lease) is Outcome.DEAD:
            logger.error("message %s was lost with its process too often; it is dead now", delivery_tag)

    @property
    def tracks_started(self) -> bool:
        """Whether early acks keep their message leased until its task has ended."""
        return self._options.track_started

    def _left_window(self, delivery_tag: str) -> None:
        self.qos.discard(delivery_tag)
        self._ahead.started()
        self._poke()

    def flow(self, active: bool = True) -> None:
        raise ConfigurationError("sqlqueue channels cannot pause the flow; cancel the consumer instead")

    # -- closing --------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel the consumers and give back what they hold, save for tasks that still run."""
        if self.closed:
            return
        self.closed = True
        for consumer_tag in list(self._consumers):
            self.basic_cancel(consumer_tag)
        self._give_back(lambda delivery: True)
        self._keeper.unmind(self._ahead)
        unacked = [lease for tag in self.qos.take_all() if (lease := Lease.parse(tag))]
        if unacked:
            self._keeper.forsake(unacked)
        if self.connection is not None:
            self.connection.close_channel(self)

    def release_all_but(self, kept: Container[str]) -> None:
        """Give back at once every message whose tag is not in `kept`."""
        self._give_back(lambda delivery: True)
        tags = [tag for tag in self.qos.tags() if tag not in kept]
        self._keeper.release([lease for tag in tags if (lease := Lease.parse(tag))])
        for tag in tags:
            self.qos.discard(tag)

    def _give_back(self, which: Callable[[Delivery], bool]) -> None:
        self._keeper.release([delivery.lease for delivery in self._ahead.take_back(which)])

    @property
    def qos(self) -> QoS:
        if self._qos is None:
            self._qos = QoS()
        return self._qos
