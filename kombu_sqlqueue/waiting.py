"""Waiting for results: `get()` is woken by the database, and one query serves all who wait.

The threads that wait take turns. Whoever has the turn listens, and looks for everything that
anybody here waits for; the others sleep until it has looked.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from celery import states
from celery.backends.asynchronous import BaseResultConsumer, Drainer

from .errors import StoreUnavailableError
from .notifier import Subscription
from .results import FINAL, Result
from .topics import RESULTS, result_topic, task_in

__all__ = ["ResultConsumer"]

logger = logging.getLogger(__name__)

#: Seconds a turn lasts at most, and between two calls of a waiter's `on_interval`.
TURN = 1.0
INTERVAL = 0.5
#: While more results than this are waited for, looks take at most this share of the time, and come at
#: least this often, in seconds: they find more at once then, and leave the processor to the workers.
MANY = 50
BUSY = 0.2
REST = 0.25
#: Seconds to wait after the database was away.
OUTAGE_PAUSE = 0.5


class ResultConsumer(BaseResultConsumer):
    """Resolves the results that this process waits for. Any number of threads may wait."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Celery's other drainers start a greenlet that reads for all. Here who waits reads, by turns.
        self.drainer = Drainer(self)
        self._wanted: set[str] = set()
        self._seen: dict[str, int] = {}
        self._watch = _Watch(self._wanted)

    # -- what the backend calls -----------------------------------------------------------

    def consume_from(self, task_id: str) -> None:
        self._wanted.add(task_id)

    def cancel_for(self, task_id: str) -> None:
        # Called while objects are being destroyed, in any thread: it must not lock or wait.
        self._wanted.discard(task_id)
        self._seen.pop(task_id, None)

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        self.consume_from(initial_task_id)

    def stop(self) -> None:
        self._watching().close()

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Somebody begins to wait: perhaps all is there already."""
        if self.backend.writes_within or not self.backend.unsent.isdisjoint(_ids(result)):
            raise RuntimeError(
                "nobody waits for a result inside a transaction: its task was sent in one that is still open; wait after it"
            )
        try:
            self._look_for(self._wanted.intersection(_ids(result)))
        except StoreUnavailableError as error:
            logger.warning("could not look for results, trying again: %s", error)
        self._watching().joined()

    def drain_events_until(
        self, p: Any, timeout: float | None = None, on_interval: Callable[[], object] | None = None
    ) -> Iterator[None]:
        """Resolve results until `p` is ready. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        next_call = time.monotonic() + INTERVAL
        while not p.ready:
            left = TURN if deadline is None else min(TURN, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError
            self.drain_events(timeout=left)
            yield
            # Also at the end: Celery looks in it for an earlier failure, which is what the caller shall get.
            if on_interval is not None and (p.ready or time.monotonic() >= next_call):
                next_call = time.monotonic() + INTERVAL
                on_interval()

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds for something to happen, and resolve what has arrived."""
        watch = self._watching()
        limit = TURN if timeout is None else timeout
        with watch.turn(limit) as mine:
            if not mine:
                return
            try:
                heard = watch.wait(self.backend.process.notifier, limit)
                began = time.monotonic()
                found = self._look_for(self._named(heard))
            except StoreUnavailableError as error:
                logger.warning("could not look for results, trying again: %s", error)
                time.sleep(min(limit, OUTAGE_PAUSE))
            else:
                watch.looked(found, time.monotonic() - began if len(self._wanted) > MANY else 0.0)

    # -- looking --------------------------------------------------------------------------

    def _named(self, heard: Collection[str] | None) -> Collection[str]:
        """The tasks to look for: those heard of, or all."""
        wanted = list(self._wanted)
        return wanted if heard is None else [task_id for task_id in wanted if result_topic(task_id) in heard]

    def _look_for(self, task_ids: Collection[str]) -> int:
        """Resolve those of these tasks that have ended; the answer is how many."""
        if not task_ids:
            return 0
        found = self.backend.results.fetch(task_ids, final=self.on_message is None)
        ended = [result for result in found if result.state in FINAL]
        for result in ended:
            self.on_state_change(self._decoded(result), None)
        if self.on_message is not None:
            self._tell_progress([result for result in found if result.state not in FINAL])
        return len(ended)

    def _tell_progress(self, results: list[Result]) -> None:
        for result in results:
            if self._seen.get(result.task_id) != result.version:
                self._seen[result.task_id] = result.version
                self.on_message(self._decoded(result))

    def _decoded(self, result: Result) -> dict[str, Any]:
        try:
            meta: dict[str, Any] = self.backend.decode_result(result.meta)
        except Exception as error:
            # Who asked for it gets the error; whoever happens to have the turn goes on.
            logger.exception("the result of task %s cannot be read", result.task_id)
            return {"task_id": result.task_id, "status": states.FAILURE, "result": error, "traceback": None}
        return {**meta, "task_id": result.task_id}

    def _watching(self) -> _Watch:
        # After a fork the parent's lock may be held by nobody, and its subscription is the parent's.
        if self._watch.pid != os.getpid():
            self._watch = _Watch(self._wanted)
        return self._watch


class _Watch:
    """The turn, and when to look: what the waiting threads of one process share."""

    def __init__(self, wanted: Collection[str]) -> None:
        """`wanted` are the tasks that are waited for, as it is at any moment."""
        self.pid = os.getpid()
        self._wanted = wanted
        self._free = threading.Condition()
        self._taken = False
        self._subscription: Subscription | None = None
        self._pace = Pace()
        self._by_poll = False
        self._woken = False
        self._poked = False
        self._rest_until = 0.0

    @contextmanager
    def turn(self, timeout: float) -> Iterator[bool]:
        """True if the turn is ours; False after someone else has had it, or `timeout` seconds."""
        with self._free:
            mine = not self._taken
            if mine:
                self._taken = True
            else:
                self._free.wait(timeout)
        try:
            yield mine
        finally:
            if mine:
                with self._free:
                    self._taken = False
                    self._free.notify_all()

    def wait(self, notifier: Any, timeout: float) -> Collection[str] | None:
        """Wait up to `timeout` seconds for a reason to look. What was heard of; None to look for all."""
        until = time.monotonic() + timeout
        subscription = self._subscribed(notifier)
        if subscription.arm():
            # Who looked for waiters before we became one announces nothing, and may commit a moment later.
            self._pace.hurry()
            self._by_poll = self._woken = False
            return None
        heard = subscription.wait(min(timeout, self._pace.pause))
        self._by_poll = heard is not None and not heard
        self._woken = not self._by_poll and not self._poked
        self._poked = False
        rest = min(self._rest_until, until) - time.monotonic()
        if rest > 0:
            time.sleep(rest)
            more = subscription.take()
            heard = None if heard is None or more is None else heard | more
        return None if self._by_poll else heard

    def looked(self, found: int, took: float) -> None:
        """Who had the turn has looked and found so many; it took so many seconds that the database deserves a rest."""
        self._rest_until = time.monotonic() + min(REST, took * (1 / BUSY - 1))
        if self._by_poll:
            self._pace.polled(found)
        elif self._woken and found:
            self._pace.woken()

    def joined(self) -> None:
        """One more thread begins to wait."""
        if self._pace.trusts:
            return
        self._pace.hurry()
        if self._taken and self._subscription is not None:
            self._poked = True
            self._subscription.poke()

    def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    def _subscribed(self, notifier: Any) -> Subscription:
        if self._subscription is None:
            wanted = self._wanted
            # Each result of anybody is announced to who waits for one.
            subscription = notifier.subscribe([RESULTS], wants=lambda topic: task_in(topic) in wanted)
            # Nothing is written when we are garbage: waiters who stay silent are forgotten anyway.
            weakref.finalize(self, _forget, self.pid, notifier, subscription).atexit = False
            self._subscription = subscription
        return self._subscription


class Pace:
    """How long to wait for a wake-up before looking unasked.

    Wake-ups are trusted once one brought something, and no longer once a look found what none told of.
    """

    def __init__(self) -> None:
        self.trusts = False
        self.hurry()

    def hurry(self) -> None:
        """Look soon."""
        self.pause = 0.01

    def woken(self) -> None:
        """A look that was asked for has found something."""
        self.trusts = True

    def polled(self, found: int) -> None:
        """A look that nobody asked for has found so many."""
        if found:
            self.trusts = False
            self.hurry()
        elif self.trusts:
            self.pause = min(1.0, self.pause * 5)
        else:
            self.pause = min(0.5, self.pause * 1.5)


def _forget(pid: int, notifier: Any, subscription: Subscription) -> None:
    if os.getpid() == pid:
        notifier.drop(subscription)


def _ids(result: Any) -> Iterator[str]:
    """The ids of all tasks that `result` stands for and that are not known to have ended."""
    members = getattr(result, "results", None)
    if members is not None:
        for member in members:
            yield from _ids(member)
    elif not result._cache:
        yield result.id
