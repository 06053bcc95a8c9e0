"""Being woken by the database. Hearing nothing costs a poll, never work: who waits also polls."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Protocol

from .errors import SQLQueueError, StoreUnavailableError

__all__ = ["DeafError", "Notifier", "Subscription", "Waiters", "Waker"]

logger = logging.getLogger(__name__)

#: How long a waiter counts as waiting without saying so again.
ARMED_FOR = timedelta(seconds=60)
#: A waiter says so again when less than this, in seconds, is left.
ARM_AGAIN = 30.0
#: Seconds between two tries to listen again after the connection was lost.
LISTEN_AGAIN = 1.0
#: The listening thread looks at its orders at least this often, in seconds.
LISTEN_FOR = 10.0

#: Nothing was heard.
SILENCE: frozenset[str] = frozenset()


class DeafError(Exception):
    """Something between us and the database keeps what it says from us, for good."""


class Waker(Protocol):
    """Blocks until the database says that something changed."""

    def wait(self, timeout: float) -> Collection[str] | None: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class Waiters(Protocol):
    """Records who waits, so that announcements are made only to someone."""

    @property
    def needed(self) -> bool: ...
    def arm(self, waiter: str, topics: Collection[str], *, armed_for: timedelta) -> None: ...
    def disarm(self, waiter: str) -> None: ...


class Subscription:
    """One waiter's interest in some topics. Use it from one thread; `poke` from any."""

    def __init__(
        self,
        notifier: Notifier,
        topics: Collection[str],
        on_heard: Callable[[], object] | None,
        wants: Callable[[str], bool] | None,
    ) -> None:
        self.name = uuid.uuid4().hex
        #: Which of the announcements that reach us are worth being woken for; all if None.
        self.wants = wants
        self._notifier = notifier
        self._topics = frozenset(topics)
        self._on_heard = on_heard
        self._event = threading.Event()
        self._heard: set[str] = set()
        self._anything = False
        self._lock = threading.Lock()
        self._armed_until = 0.0

    @property
    def topics(self) -> frozenset[str]:
        return self._topics

    @topics.setter
    def topics(self, topics: Collection[str]) -> None:
        if self._topics != frozenset(topics):
            self._topics = frozenset(topics)
            self._armed_until = 0.0

    def arm(self) -> bool:
        """Make sure that announcements reach us; True if they did not before: look once more."""
        if not self.announces or time.monotonic() < self._armed_until:
            return False
        fresh = time.monotonic() > self._armed_until + ARM_AGAIN
        self._notifier.waiters.arm(self.name, self._topics, armed_for=ARMED_FOR)
        self._armed_until = time.monotonic() + ARMED_FOR.total_seconds() - ARM_AGAIN
        return fresh

    @property
    def announces(self) -> bool:
        """Whether we hear of each single thing, as long as we are armed."""
        return self._notifier.announces

    @property
    def hears(self) -> bool:
        """Whether anything reaches us between two looks of our own."""
        return not self._notifier.is_deaf

    @property
    def heard_until(self) -> float:
        """Until when announcements reach us, by the monotonic clock; in the past if none do."""
        return self._armed_until + ARM_AGAIN if self._armed_until and self.announces else 0.0

    def disarm(self) -> None:
        """We are busy: until we wait again nobody needs to announce anything to us."""
        if self._armed_until:
            self._armed_until = 0.0
            self._notifier.waiters.disarm(self.name)

    def wait(self, timeout: float) -> frozenset[str] | None:
        """What was heard within `timeout` seconds: topics, nothing (empty), or None for anything."""
        if self.arm():
            return None
        self._event.wait(timeout)
        return self.take()

    def take(self) -> frozenset[str] | None:
        """What was heard since the last call, without waiting."""
        with self._lock:
            self._event.clear()
            heard = None if self._anything else frozenset(self._heard)
            self._anything = False
            self._heard.clear()
        return heard

    def poke(self) -> None:
        """End a `wait`: something happened that the database knows nothing of."""
        self.hear(None)

    def hear(self, topics: Collection[str] | None) -> None:
        """Take note of an announcement; None says that anything may have changed."""
        with self._lock:
            if topics is None:
                self._anything = True
            else:
                self._heard.update(topics)
            already = self._event.is_set()
            self._event.set()
        if self._on_heard is not None and not already:
            self._on_heard()

    def close(self) -> None:
        """Stop listening. Safe to call twice, and when the database is away."""
        self._notifier.forget(self)
        try:
            self.disarm()
        except SQLQueueError:
            logger.debug("could not sign off as a waiter", exc_info=True)


class Notifier:
    """One thread a process that listens for all its subscriptions."""

    def __init__(self, waiters: Waiters, open_waker: Callable[[], Waker | None], *, waited_as: Callable[[str], str]) -> None:
        self.waiters = waiters
        self._open_waker = open_waker
        self._waited_as = waited_as
        self._subscriptions: set[Subscription] = set()
        self._dropped: deque[Subscription] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None
        #: Nothing will be heard: that was asked for, or cannot be had.
        self.is_deaf = False
        self._cut = False

    @property
    def announces(self) -> bool:
        """Whether each single thing is told to who is armed."""
        return self.waiters.needed and not self.is_deaf

    def subscribe(
        self,
        topics: Collection[str],
        *,
        on_heard: Callable[[], object] | None = None,
        wants: Callable[[str], bool] | None = None,
    ) -> Subscription:
        """Listen for `topics`, or of those that are waited for as them for what `wants` says.

        Both are called in the listening thread: keep them short.
        """
        subscription = Subscription(self, topics, on_heard, wants)
        with self._lock:
            self._subscriptions.add(subscription)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sqlqueue-notifier", daemon=True)
                self._thread.start()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Listen no longer for `subscription`; with the last one the thread ends."""
        with self._lock:
            self._subscriptions.discard(subscription)
            if not self._subscriptions and self._waker is not None:
                self._waker.interrupt()

    def drop(self, subscription: Subscription) -> None:
        """As `forget`, when the thread comes round: for whoever is being destroyed, in the midst of anything and in any
        thread, so that it must not lock.
        """
        self._dropped.append(subscription)

    def _run(self) -> None:
        pid = os.getpid()
        waker = self._waker = self._open_waker()
        self.is_deaf = self.is_deaf or waker is None
        try:
            while waker is not None and os.getpid() == pid and not self.is_deaf and not self._ends():
                self._listen(waker)
        finally:
            if waker is not None and os.getpid() == pid:
                waker.close()

    def _ends(self) -> bool:
        with self._lock:
            while self._dropped:
                self._subscriptions.discard(self._dropped.popleft())
            if not self._subscriptions:
                self._thread = None
                self._waker = None
                return True
        return False

    def _listen(self, waker: Waker) -> None:
        try:
            heard = waker.wait(LISTEN_FOR)
        except DeafError:
            logger.warning(
                "a pooler in between passes no notifications on, as PgBouncer in transaction mode: polling instead;"
                " set listen=False, or listen_at to the address of the server itself"
            )
            self.is_deaf = True
            return self._tell(None)
        except StoreUnavailableError as error:
            # Once is enough: the tries go on each second, and perhaps for hours.
            logger.log(logging.DEBUG if self._cut else logging.WARNING, "not being notified, polling: %s", error)
            self._cut = True
            self._tell(None)
            return time.sleep(LISTEN_AGAIN)
        if self._cut:
            self._cut = False
            logger.info("being notified again")
        if heard is None or heard:
            self._tell(heard)

    def _tell(self, heard: Collection[str] | None) -> None:
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            if heard is None:
                subscription.hear(None)
            elif mine := [topic for topic in heard if self._concerns(topic, subscription)]:
                subscription.hear(mine)

    def _concerns(self, topic: str, subscription: Subscription) -> bool:
        wants = subscription.wants
        return self._waited_as(topic) in subscription.topics and (wants is None or wants(topic))
