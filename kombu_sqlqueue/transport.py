"""Kombu's transport: how a connection consumes, in a blocking loop or in the worker's event loop.

Both loops do the same turn: write what was settled, claim what the windows have room for, deliver
it, and when nothing is ready arrange to be woken. They differ in who waits.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import sys
import time
import warnings
from collections.abc import Collection
from datetime import timedelta
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
from .settling import WAIT_FOR
from .topics import ROUTES, queue_topic, ready_in, tells_of_later, topic_name

__all__ = ["PartsTransport", "Transport"]

logger = logging.getLogger(__name__)

#: Right after we became a waiter, announcements may still miss us: a publisher that looked for
#: waiters before commits later. So look again after these many seconds. Where nobody announces
#: anything, look as often after each message.
IMPATIENCE = (0.01, 0.05, 0.25)
#: After this many claims in a row that left something, nobody needs to wake us for so many seconds.
BUSY_AFTER = 20
BUSY_FOR = 0.25
#: Seconds after which queues that were found empty are looked at again while nobody wakes us.
LOOK_AGAIN_AFTER = 0.04
#: Where each message is announced, looking without being told is the last resort: once in so many intervals.
TRUST = 10
#: Write what was settled before a claim if it is this much.
SETTLE_AT = 16
#: The first due moment is asked for again at least this often, in seconds; where nobody tells of later messages at each poll.
LOOK_AHEAD_EVERY = 10.0
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
        #: Tasks run in processes of their own, whose death is not ours.
        self.tasks_are_apart = False
        self._subscription: Subscription | None = None
        self._loop: Any = None
        self._doorbell: tuple[socket.socket, socket.socket] | None = None
        self._timers: list[Any] = []
        self._turn_due = False
        self._timed_turn_at = 0.0
        self._first = 0
        self._full_claims = 0
        self._busy_until = 0.0
        self._heard = False
        self._armed = False
        self._patience = 0
        self._next_due = math.inf
        self._look_ahead_at = 0.0

    # -- the process's share --------------------------------------------------------------

    @property
    def process(self) -> Process:
        return process_for(self.options.database)

    @property
    def keeper(self) -> LeaseKeeper:
        return self.process.keeper(self.options)

    def establish_connection(self) -> Transport:
        """Touch the database. Raises StoreUnavailableError, also for one that is read-only, or SchemaError."""
        # Told here, Celery waits between two tries, and Kombu goes on to the next URL it was given.
        self.process.prepare(to_write=True)
        self.process.catch_up()
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
            self.process.routes.told_until = 0.0
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
            if self._arm():
                continue
            pause = self._pause()
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
                if pause <= 0:
                    raise TimeoutError("timed out")
            self._take_in(self._listening().wait(pause))

    def _drain(self) -> bool:
        delivered = self._deliver_some()
        self._settle()
        return delivered or (self._fetch() and self._deliver_some())

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
        self._timers = [loop.call_repeatedly(self.options.polling_interval.total_seconds(), self._timed_turn)]
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
        if self._deliver_all() or (self._fetch() and self._deliver_all()):
            # The pool writes what it was given when the loop comes round: let it, then go on.
            self._ask_for_turn()
            return
        self._settle()
        if self._arm():
            self._ask_for_turn()
            return
        pause = self._pause()
        if pause < self.options.polling_interval.total_seconds():
            self._turn_in(pause)

    def _turn_in(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        if not self._timers[1:] or at < self._timed_turn_at or self._timed_turn_at < time.monotonic():
            for timer in self._timers[1:]:
                timer.cancel()
            self._timed_turn_at = at
            self._timers[1:] = [self._loop.call_later(seconds, self._timed_turn)]

    def _timed_turn(self) -> None:
        # Timers come before the pool's writers: nothing may hold up what was delivered just now.
        if not self._turn_due:
            self._turn()

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
        wanting = [channel for channel in list(self.channels) if channel.wants]
        if wanting and len(self.keeper.settler) >= SETTLE_AT:
            self.keeper.settler.flush(spare_young=any(channel.is_quick for channel in wanting))
        found = 0
        for channel in wanting:
            found += channel.fetch()
            self._full_claims = self._full_claims + 1 if channel.has_more else 0
        if self._full_claims >= BUSY_AFTER:
            self._busy_until = time.monotonic() + BUSY_FOR
            if self._armed:
                self.process.routes.told_until = 0.0
                self._listening().disarm()
                self._armed = False
                self._look_ahead_at = 0.0
        if found and not self._listening().announces:
            self._patience = 0
        if wanting and not found and self._heard:
            # Most often another has it. Or it was placed before what we have claimed, and is found after a while.
            self._patience = min(self._patience, len(IMPATIENCE) - 1)
        self._heard = False
        return found > 0

    def _settle(self) -> None:
        settler = self.keeper.settler
        quick = any(channel.is_quick for channel in self.channels)
        # Should its worker die, a long task is to be known as the one that ran: at once if it may not run again, or can
        # take the worker with it.
        marks = settler.has_starts if self.tasks_are_apart else settler.has_marks
        if settler.due or (marks and not quick):
            settler.flush(spare_young=quick, spare_begun=self.tasks_are_apart)

    def _arm(self) -> bool:
        """See to it that we are woken, unless we are busy; True if we were not before: look once more."""
        if time.monotonic() < self._busy_until:
            return False
        fresh = self._listening().arm()
        self.process.routes.told_until = self._listening().heard_until
        if fresh or not self._armed:
            self._armed = True
            self._patience = 0
        if fresh:
            self.process.routes.doubt()
            self._look_ahead_at = 0.0
            self._look_everywhere()
        return fresh

    @property
    def look_again_after(self) -> float:
        """After how many seconds to look again at queues that were found empty, if nobody tells of them."""
        if not self._armed:
            return LOOK_AGAIN_AFTER
        seconds = self.options.polling_interval.total_seconds()
        return seconds * TRUST if self._listening().announces else seconds

    def _pause(self) -> float:
        """Nothing is ready, or nobody has room: how many seconds to wait at most."""
        pause = self.options.polling_interval.total_seconds()
        if self.keeper.settler:
            pause = min(pause, WAIT_FOR)
        if self._patience < len(IMPATIENCE):
            pause = min(pause, IMPATIENCE[self._patience])
            self._patience += 1
            self._look_everywhere()
        return max(0.001, min(pause, self._next_due - time.monotonic()))

    def _look_ahead(self) -> None:
        now = time.monotonic()
        if now >= self._look_ahead_at:
            self._expect(self.process.messages.next_due(), now)

    def _expect(self, due_in: timedelta | None, asked_at: float) -> None:
        is_told = self._armed and self._patience == len(IMPATIENCE) and self._listening().hears
        self._look_ahead_at = asked_at + (LOOK_AHEAD_EVERY if is_told else self.options.polling_interval.total_seconds())
        self._next_due = math.inf if due_in is None else asked_at + due_in.total_seconds()

    def _promote(self) -> None:
        """Make ready what is due; it is claimed in the same turn."""
        # Here, since who has something to do at each turn never pauses.
        self._look_ahead()
        asked_at = time.monotonic()
        if asked_at < self._next_due:
            return
        promoted = self.process.messages.promote(limit=PROMOTE_BATCH, by=self._listening().name)
        self._expect(promoted.due_in, asked_at)
        if promoted.ready:
            self._look_into({topic_name(queue) for queue in promoted.queues})
        else:
            # Most often somebody else is just at it, and tells us.
            self._next_due = max(self._next_due, asked_at + IMPATIENCE[0])

    def _take_in(self, heard: frozenset[str] | None) -> None:
        if heard is None or tells_of_later(heard):
            # It may be due before what we know of.
            self._look_ahead_at = 0.0
        if heard is not None and ROUTES in heard:
            self.process.routes.forget()
        if heard is None:
            self.process.routes.doubt()
            self._look_everywhere()
        elif names := ready_in(heard):
            self._heard = True
            self._look_into(names)

    def _look_everywhere(self) -> None:
        for channel in list(self.channels):
            channel.look()

    def _look_into(self, names: Collection[str]) -> None:
        for channel in list(self.channels):
            channel.look(names)

    def _topics(self) -> set[str]:
        queues = {queue_topic(queue) for channel in self.channels for queue in channel._active_queues}
        return {ROUTES, *queues}

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
