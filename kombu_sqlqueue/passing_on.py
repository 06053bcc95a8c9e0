"""The broker that a relay passes messages on to: what it has taken, what it refuses, and when it is away."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.common import maybe_declare
from kombu.exceptions import OperationalError

from .letters import Letter, entity

__all__ = ["Broker", "Parcel", "Passed"]

logger = logging.getLogger(__name__)

#: Seconds that a broker has to confirm what it was sent.
CONFIRM_WITHIN = 30.0
#: What is wrong with a message for certain: the next try would fail in the same way.
ILL_FORMED = (TypeError, ValueError, OverflowError, struct.error)
#: Redis refuses whatever it is sent for a while; by the name of the error or its first word.
FOR_A_WHILE = frozenset(
    {
        "BUSY",
        "CLUSTERDOWN",
        "ClusterDownError",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MasterDownError",
        "NOAUTH",
        "NOPERM",
        "NOREPLICAS",
        "NoPermissionError",
        "OOM",
        "OutOfMemoryError",
        "READONLY",
        "ReadOnlyError",
        "TRYAGAIN",
        "TryAgainError",
    }
)


class NotTakenError(Exception):
    """The broker said that it could not take a message just now."""


class UnroutableError(Exception):
    """No queue of the broker is bound to where the message was sent."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A letter with the number that it has in the outbox."""

    id: int
    letter: Letter


@dataclass(slots=True)
class Passed:
    """What became of parcels. What is neither taken nor refused is to be sent again."""

    taken: set[int] = field(default_factory=set)
    refused: dict[int, Exception] = field(default_factory=dict)
    trouble: Exception | None = None
    """Why the broker could not go on."""
    suspect: int | None = None
    """The parcel that met the trouble, if it may be to blame."""

    def lacks(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Those of which nothing is known yet."""
        return [parcel for parcel in parcels if parcel.id not in self.taken and parcel.id not in self.refused]


class Line:
    """A channel to a broker where a publish that returned is there."""

    def __init__(self, channel: Any, passed: Passed) -> None:
        self.channel = channel
        self.passed = passed
        self._declared: set[str] = set()

    def send(self, parcel: Parcel) -> None:
        self._publish(parcel.letter, **parcel.letter.address)
        self.passed.taken.add(parcel.id)

    def settle(self) -> None:
        """Wait until all that was sent is known to be taken, or refused."""

    def _publish(self, letter: Letter, **address: Any) -> None:
        message = self.channel.prepare_message(letter.body, **letter.content)
        for text in letter.declare:
            self._declare(text)
        self.channel.basic_publish(message, **address)

    def _declare(self, text: str) -> None:
        if text in self._declared:
            return
        bound = entity(text)(self.channel)
        maybe_declare(bound, self.channel)
        if bound.can_cache_declaration:
            self._declared.add(text)


class ConfirmedLine(Line):
    """A channel to RabbitMQ, which confirms later what was sent, many at once."""

    def __init__(self, channel: Any, passed: Passed) -> None:
        super().__init__(channel, passed)
        self._sent: dict[int, Parcel] = {}
        self._tag = 0
        self._returned: set[int] = set()
        self._nacked = False
        channel.confirm_select()
        for event, hear in ("basic_ack", self._ack), ("basic_nack", self._nack), ("basic_return", self._return):
            channel.events[event].add(hear)

    def send(self, parcel: Parcel) -> None:
        # A task that leads to no queue is to come back. That nobody listens to an event is no fault.
        mandatory = parcel.letter.address["mandatory"] or parcel.letter.is_task
        self._publish(parcel.letter, **{**parcel.letter.address, "mandatory": mandatory})
        self._tag += 1
        self._sent[self._tag] = parcel

    def settle(self) -> None:
        until = time.monotonic() + CONFIRM_WITHIN
        while self._sent and not self._nacked:
            self.channel.connection.drain_events(timeout=max(0.001, until - time.monotonic()))
        if self._nacked:
            raise NotTakenError("the broker did not confirm a message: a queue may be full")

    def _ack(self, tag: int, multiple: bool) -> None:
        for each in self._up_to(tag, multiple):
            parcel = self._sent.pop(each)
            if parcel.id not in self._returned:
                self.passed.taken.add(parcel.id)

    def _nack(self, tag: int, multiple: bool) -> None:
        self._nacked = True
        for each in self._up_to(tag, multiple):
            del self._sent[each]

    def _return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """One without a queue comes back. It has no number; but which of two that are alike does not matter."""
        for parcel in self._sent.values():
            letter = parcel.letter
            where = letter.address["exchange"], letter.address["routing_key"]
            body = letter.body.encode() if isinstance(letter.body, str) else letter.body
            came = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
            if parcel.id not in self._returned and where == (exchange, routing_key) and body == came:
                self._returned.add(parcel.id)
                self.passed.refused[parcel.id] = UnroutableError(
                    f"no queue is bound to exchange {exchange!r} for routing key {routing_key!r}"
                )
                return

    def _up_to(self, tag: int, multiple: bool) -> Collection[int]:
        return [each for each in list(self._sent) if each == tag or (multiple and each <= tag)]


class Broker:
    """The app's broker. Used by one thread."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None
        self._line: Line | None = None

    def pass_on(self, parcels: Sequence[Parcel], *, until: float) -> Passed:
        """Send the parcels, in this order. None is begun after the moment `until` of `time.monotonic`."""
        passed = Passed()
        while (rest := passed.lacks(parcels)) and passed.trouble is None and time.monotonic() < until:
            self._pass_on(rest, passed, until)
        if passed.trouble is not None:
            self.close()
        return passed

    def close(self) -> None:
        """Hang up; the next use connects again."""
        connection, self._connection, self._line = self._connection, None, None
        if connection is not None:
            try:
                connection.release()
            except Exception:
                logger.debug("could not hang up", exc_info=True)

    @property
    def name(self) -> str:
        """The broker's URL without its password."""
        return str(self._app.connection_for_write().as_uri())

    def _pass_on(self, parcels: Sequence[Parcel], passed: Passed, until: float) -> None:
        """All of them together; and if one of them is refused, the others one by one, up to that one."""
        try:
            connection = self._connected()
            try:
                self._together(parcels, passed, until)
            except connection.channel_errors as error:
                _raise_if_for_a_while(error)
                self._line = None
                self._one_by_one(passed.lacks(parcels), passed, until)
        except self._away() as error:
            passed.trouble = error

    def _together(self, parcels: Sequence[Parcel], passed: Passed, until: float) -> None:
        line = self._open_line(passed)
        for parcel in parcels:
            if time.monotonic() >= until:
                break
            self._send(line, parcel)
        line.settle()

    def _one_by_one(self, parcels: Sequence[Parcel], passed: Passed, until: float) -> None:
        connection = self._connected()
        for parcel in parcels:
            if time.monotonic() >= until:
                return
            try:
                line = self._open_line(passed)
                self._send(line, parcel)
                line.settle()
            except connection.channel_errors as error:
                _raise_if_for_a_while(error)
                self._line = None
                passed.refused[parcel.id] = error
                return

    def _send(self, line: Line, parcel: Parcel) -> None:
        try:
            line.send(parcel)
        except self._known():
            raise
        except ILL_FORMED as error:
            line.passed.refused[parcel.id] = error
        except Exception as error:
            line.passed.suspect = parcel.id
            raise NotTakenError(f"{type(error).__name__}: {error}") from error

    def _open_line(self, passed: Passed) -> Line:
        if self._line is None:
            connection = self._connected()
            channel = connection.channel()
            confirms = connection.transport.driver_type == "amqp" and hasattr(channel, "confirm_select")
            self._line = (ConfirmedLine if confirms else Line)(channel, passed)
        self._line.passed = passed
        return self._line

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._app.connection_for_write(transport_options=self._options())
            self._connection = connection
            # Once each of the hosts that the URL lists.
            connection.ensure_connection(max_retries=max(1, len(connection.alt)), interval_start=0, interval_step=0)
        return self._connection

    def _options(self) -> dict[str, Any]:
        """What this connection needs besides the app's transport options."""
        given = self._app.conf.broker_transport_options
        if "confirm_publish" in given:
            # Confirmations are waited for here, many at once: not one by one, as with this option.
            return {"confirm_publish": False}
        if self._app.connection_for_write().transport.driver_type == "redis":
            # One that does not answer would be waited for in vain.
            return {"socket_timeout": given.get("socket_timeout") or CONFIRM_WITHIN}
        return {}

    def _known(self) -> tuple[type[Exception], ...]:
        connection = self._connected()
        return (*connection.channel_errors, *connection.connection_errors)

    def _away(self) -> tuple[type[Exception], ...]:
        of_connection = self._connection.connection_errors if self._connection is not None else ()
        return (NotTakenError, OperationalError, OSError, *of_connection)


def _raise_if_for_a_while(error: Exception) -> None:
    """Raise NotTakenError if it is not the message that the broker does not like."""
    first_word = str(error).partition(" ")[0]
    if type(error).__name__ in FOR_A_WHILE or first_word in FOR_A_WHILE:
        raise NotTakenError(f"{type(error).__name__}: {error}") from error
