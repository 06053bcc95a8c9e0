"""Kombu's transport: how a connection consumes, in a blocking loop or in the worker's event loop.

Both loops do the same turn: write what was settled, claim what the windows have room for, deliver
it, and when nothing is ready arrange to be woken. They differ in who waits.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import time
import warnings
from typing import Any
from urllib.parse import quote

from kombu.transport import virtual
from kombu.transport.base import Transport as BaseTransport

from .channel import Channel
from .errors import StoreUnavailableError
from .keeper import LeaseKeeper
from .notifier import Subscription
from .options import Options, hide_password
from .process import Process, process_for
from .topics import queue_topic

__all__ = ["PartsTransport", "Transport"]

logger = logging.getLogger(__name__)

#: Right after the last message, announcements may still miss us: a publisher that looked for
#: waiters before we became one commits later. So look again after these many seconds.
IMPATIENCE = (0.01, 0.05, 0.25)
#: After this many claims in a row that found something, nobody needs to wake us.
BUSY_AFTER = 20
#: The first due moment is asked for again at least this often, in seconds.
LOOK_AHEAD_EVERY = 5.0
#: The blocking loop writes what was settled when it has nothing to deliver, or so much is to be written.
SETTLE_AT = 32
#: How many due messages one transaction promotes.
PROMOTE_BATCH = 500


class Transport(virtual.Transport):
    """One connection to the broker. Its database connections are the process's."""

    Channel = Channel
    can_parse_url = True
    driver_type = "sqlqueue"
    driver_name = "sqlqueue"
    connection_errors = (*BaseTransport.connection_errors, StoreUnavailableError)
    recoverable_connection_errors = connection_errors
    channel_errors = BaseTransport.channel_errors
    recoverable_channel_errors = channel_errors
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.options = Options.parse(_url_of(client), client.transport_options)
        if client.ssl:
            warnings.warn(
                "sqlqueue ignores broker_use_ssl: ask the driver for TLS in the URL, as ?sslmode=verify-full"
                " for PostgreSQL or ?ssl_ca=/path/to/ca.pem for MariaDB and MySQL",
                stacklevel=2,
            )
        self.implements = self.implements.extend(asynchronous=self.options.event_loop)
        self._subscription: Subscription | None = None
        self._loop: Any = None
        self._doorbell: tuple[socket.socket, socket.socket] | None = None
        self._timers: list[Any] = []
        self._turn_due = False
        self._first = 0
        self._claims_in_a_row = 0
        self._patience = 0
        self._next_due = 0.0
        self._look_ahead_at = 0.0

    # -- the process's share --------------------------------------------------------------

    @property
    def process(self) -> Process:
        return process_for(self.options.database)

    @property
    def keeper(self) -> LeaseKeeper:
        return self.process.keeper(self.options)

    def establish_connection(self) -> Transport:
        """Touch the database. Raises StoreUnavailableError or SchemaError."""
        self.process.prepare()
        self._avail_channels.append(self.create_channel(self))
        return self

    def close_connection(self, connection: Any) -> None:
        """Close the channels, which give back what they hold, and stop listening."""
        for channel in [*self._avail_channels, *self.channels]:
            channel.close()
        self._avail_channels.clear()
        if self._loop is not None:
            self._leave_loop()
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def verify_connection(self, connection: Any) -> bool:
        return True

    def driver_version(self) -> str:
        from importlib.metadata import version

        return version("kombu-sqlqueue")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The broker URL, its password hidden unless asked for."""
        return "sqlqueue+" + (uri if include_password else hide_password(uri))

    # -- the blocking loop ----------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what is ready, waiting for it up to `timeout` seconds.

        Of messages that need no ack only one is delivered: who expects three replies calls three
        times, and would wait for a fourth. Raises TimeoutError if none came, StoreUnavailableError if the database went away.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._drain():
            pause = self._idle()
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
                if pause <= 0:
                    raise TimeoutError("timed out")
            self._take_in(self._listening().wait(pause))

    def _drain(self) -> bool:
        if self._deliver_some():
            if len(self.keeper.settler) >= SETTLE_AT:
                self.keeper.settler.flush()
            return True
        self.keeper.settler.flush()
        return self._fetch() and self._deliver_some()

    def _deliver_some(self) -> bool:
        channels = list(self.channels)
        for nth in range(len(channels)):
            at = (self._first + nth) % len(channels)
            if channels[at].deliver_some():
                self._first = at + 1  # so that no channel waits for one that always has something
                return True
        return False

    # -- the event loop -------------------------------------------------------------------

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let the worker's event loop call us. Messages are delivered from readers and timers only:
        what is delivered from `on_tick` waits in Celery's pool for the next event.
        """
        self._loop = loop
        self._doorbell = socket.socketpair()
        for end in self._doorbell:
            end.setblocking(False)
        loop.add_reader(self._doorbell[0], self._on_doorbell)
        self._timers = [loop.call_repeatedly(self.options.polling_interval.total_seconds(), self._turn)]
        self._ask_for_turn()

    def _leave_loop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._doorbell is not None:
            reader, writer = self._doorbell
            try:
                self._loop.remove_reader(reader)
            except (KeyError, OSError, ValueError, AttributeError):
                logger.debug("the event loop had dropped us already", exc_info=True)
            reader.close()
            writer.close()
        self._loop = self._doorbell = None

    def _ring(self) -> None:
        """Called in the listening thread: the loop reads the doorbell in its own."""
        doorbell = self._doorbell
        if doorbell is not None:
            try:
                doorbell[1].send(b"!")
            except OSError:
                logger.debug("the doorbell is closed or full", exc_info=True)

    def _on_doorbell(self) -> None:
        if self._doorbell is None:
            return
        with contextlib.suppress(BlockingIOError):
            self._doorbell[0].recv(4096)
        self._take_in(self._listening().take())
        self._turn()

    def _ask_for_turn(self) -> None:
        # Not by `call_soon`: called from a callback of the loop, that waits for the poll to end.
        if not self._turn_due and self._loop is not None:
            self._turn_due = True
            self._ring()

    def _turn(self) -> None:
        self._turn_due = False
        if self._loop is None:
            return
        self.keeper.settler.flush()
        while self._deliver_all() or self._fetch():
            pass
        if self._has_room():
            pause = self._idle()
            if self._listening().arm():
                self._look_everywhere()
                self._ask_for_turn()
            elif pause < self.options.polling_interval.total_seconds():
                self._turn_in(pause)

    def _turn_in(self, seconds: float) -> None:
        for timer in self._timers[1:]:
            timer.cancel()
        self._timers[1:] = [self._loop.call_later(seconds, self._turn)]

    def _deliver_all(self) -> bool:
        delivered = False
        for channel in list(self.channels):
            while channel.deliver_next():
                delivered = True
        return delivered

    # -- what both loops share ------------------------------------------------------------

    def poke(self) -> None:
        """A window has room again, or something is to be settled. Any thread may call it."""
        if self._loop is not None:
            self._ask_for_turn()
        elif self._subscription is not None:
            self._subscription.poke()

    def consumers_changed(self) -> None:
        """Listen to the queues that are consumed now."""
        if self._subscription is not None:
            self._subscription.topics = self._topics()
        self._patience = 0
        self._ask_for_turn()

    def _fetch(self) -> bool:
        """Claim for every channel with room; False if nothing is ready."""
        self._promote()
        found = sum(channel.fetch() for channel in list(self.channels))
        if not found:
            return False
        self._patience = 0
        self._claims_in_a_row += 1
        if self._claims_in_a_row == BUSY_AFTER and self._subscription is not None:
            self._subscription.disarm()
        return True

    def _has_room(self) -> bool:
        return any(channel.room() for channel in self.channels)

    def _idle(self) -> float:
        """Nothing is ready, or nobody has room: how many seconds to wait at most."""
        pause = self.options.polling_interval.total_seconds()
        if not self._has_room():
            return pause
        self._claims_in_a_row = 0
        if self._patience < len(IMPATIENCE):
            pause = min(pause, IMPATIENCE[self._patience])
            self._patience += 1
        self._look_ahead()
        return max(0.001, min(pause, self._next_due - time.monotonic()))

    def _look_ahead(self) -> None:
        now = time.monotonic()
        if now >= self._look_ahead_at:
            due_in = self.process.messages.next_due()
            self._look_ahead_at = now + LOOK_AHEAD_EVERY
            self._next_due = now + (LOOK_AHEAD_EVERY if due_in is None else due_in.total_seconds())

    def _promote(self) -> None:
        due = time.monotonic() >= self._next_due
        if due and self.process.messages.promote(limit=PROMOTE_BATCH) < PROMOTE_BATCH:
            self._look_ahead_at = 0.0
            self._look_ahead()

    def _take_in(self, heard: frozenset[str] | None) -> None:
        if heard is None or heard:
            # What was announced may be due later, but before what we know of.
            self._look_ahead_at = 0.0
            self._look_everywhere()

    def _look_everywhere(self) -> None:
        for channel in list(self.channels):
            channel.look()

    def _topics(self) -> set[str]:
        return {queue_topic(queue) for channel in self.channels for queue in channel._active_queues}

    def _listening(self) -> Subscription:
        if self._subscription is None:
            self._subscription = self.process.notifier.subscribe(self._topics(), on_heard=self._ring)
        return self._subscription


class PartsTransport(Transport):
    """The same for URLs that Kombu takes apart itself, as it does for lists of hosts to fail over to."""

    can_parse_url = False

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        raise NotImplementedError  # Kombu puts the parts together


def _url_of(client: Any) -> str:
    """The database's URL, from the URL that Kombu kept whole or from the parts it made of it."""
    if "://" in (client.hostname or ""):
        return str(client.hostname)
    scheme = str(client.transport_cls).removeprefix("sqlqueue+").removeprefix("sqlqueue-")
    password = client.password() if callable(client.password) else client.password
    login = quote(client.userid or "", safe="") + (f":{quote(password, safe='')}" if password else "")
    port = f":{client.port}" if client.port else ""
    name = client.virtual_host or ""
    if not scheme.startswith("sqlite"):  # whose files may have an absolute path
        name = name.lstrip("/")
    return f"{scheme}://{login}{'@' if login else ''}{client.hostname or ''}{port}/{name}"


if "celery" in sys.modules:
    from .hooks import install

    install()
