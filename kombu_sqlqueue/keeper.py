"""Keeps the leases of one process: claims under them, renews them, and takes back what the dead left."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from .ahead import STALE_AFTER, Ahead
from .errors import SQLQueueError
from .messages import Delivery, Lease, Outcome, Reason
from .routing_store import RoutingStore
from .settling import Settler
from .store import MessageStore

__all__ = ["Chore", "LeaseKeeper"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A lease is renewed each time this share of it has passed.
RENEW_AT = 1 / 3
#: Decisions wait at most about this long, in seconds, for a consumer that is too busy to write them.
SETTLE_AFTER = 0.05
#: The thread rests for at least so many seconds.
SHORTEST = 0.005
#: Seconds between two tries after the database was away.
TRY_AGAIN = 1.0
#: How many messages of the dead one transaction takes back.
RECLAIM_BATCH = 200
#: After a connection loss those that live need this share of a lease to renew; nobody is taken for dead before.
GRACE = 0.5
#: The same after a write of ours was late by this share of a lease.
LATE = 0.25
#: Who seems to be dead is looked at again after so many seconds. What kept all from renewing, such as a lock, may have
#: ended just now, and we may be the first to know.
HESITATE = 0.3
#: What Celery may have dropped, or may be running, after a connection loss is looked at again after this many seconds.
SORT_OUT_AFTER = 1.0


class Chore:
    """Something small to be done every `period` seconds, by whoever keeps leases."""

    def __init__(self, do: Callable[[], object], period: float) -> None:
        self._do = do
        self._period = period
        self._next = time.monotonic() + period

    def due_in(self) -> float:
        return self._next - time.monotonic()

    def run(self) -> None:
        if self.due_in() <= 0:
            self._next = time.monotonic() + self._period
            self._do()


class LeaseKeeper:
    """The lessee of this process. Its thread renews while the process lives, however busy it is."""

    def __init__(
        self,
        store: MessageStore,
        routing: RoutingStore,
        *,
        name: str,
        lease_for: timedelta,
        max_reclaims: int,
        in_database: Callable[[], bool],
        chores: Iterable[Chore] = (),
    ) -> None:
        self._store = store
        self._routing = routing
        self._name = name
        self._lease_for = lease_for
        self._max_reclaims = max_reclaims
        self._chores = list(chores)
        self._lock = threading.RLock()
        self._locked_by: int | None = None
        self._in_database = in_database
        self._deferred: deque[Callable[[], object]] = deque()
        #: Held while something is done that had to wait. Nobody who holds `_lock` waits for it.
        self._deferring = threading.Lock()
        self._held: set[Lease] = set()
        self._unbegun: set[Lease] = set()
        self._lessee: int | None = None
        self._consumed: Counter[str] = Counter()
        self._renew_at = 0.0
        self._expiry_at = 0.0
        self._grace_until = 0.0
        self._suspected_at: float | None = None
        self._unsorted: list[tuple[float, frozenset[Lease]]] = []
        self._strays = False
        self._wake = threading.Event()
        self._watching = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._aheads: set[Ahead] = set()
        self.settler = Settler(store, on_settled=self._let_go)
        #: Tells which leases belong to tasks that run just now; set by a worker.
        self.running: Callable[[], set[Lease]] | None = None
        #: Called when messages have died; set by the worker.
        self.on_dead: Callable[[], object] = _nothing

    # -- what consumers call --------------------------------------------------------------

    def enrol(self) -> int:
        """The number of this process's lessee, which is renewed from now on; another one if it was taken for dead."""
        with self._alone():
            return self._enrolled()

    def claim(self, queues: Sequence[str], limit: int) -> list[Delivery]:
        """Claim for this process; what is claimed is renewed until it is settled or given back."""
        with self._alone():
            lessee = self._enrolled()
            losses = self._store.losses
            try:
                deliveries = self._store.claim(queues, limit=limit, lessee=lessee)
            except SQLQueueError:
                self._strays = True
                raise
            # What a claim leased whose answer was lost nobody knows of, though another try succeeded.
            self._strays = self._strays or self._store.losses != losses
            self._held.update(delivery.lease for delivery in deliveries)
        if self._aheads:
            self._watch()
        return deliveries

    def mind(self, ahead: Ahead) -> None:
        """Give back what goes stale there, until `unmind`."""
        self._aheads.add(ahead)

    def unmind(self, ahead: Ahead) -> None:
        self._aheads.discard(ahead)

    def consume(self, queue: str) -> bool:
        """This process has one more consumer of the queue; False if nobody declared that one."""
        with self._alone():
            declared = self._routing.consume(queue, self._enrolled())
            self._consumed[queue] += 1
        return declared

    def cancel(self, queue: str) -> None:
        """This process has one consumer of the queue less; a queue that lives by them may go."""
        self._now_or_later(lambda: self._cancel(queue))

    def _cancel(self, queue: str) -> None:
        with self._alone():
            if self._lessee is not None:
                self._routing.cancel(queue, self._lessee)
            self._consumed -= Counter([queue])

    def ack(self, lease: Lease) -> None:
        """The message is done with; written in the next batch."""
        if lease not in self._held:
            logger.warning(
                "lease %s was lost before its ack: another worker may run, or have run, its message too", lease.tag
            )
        self.settler.ack(lease)
        self._watch()

    def forget(self, lease: Lease) -> None:
        """The message is gone, its owner has settled it."""
        self.settler.forget(lease)
        self._let_go([lease])

    def begin(self, lease: Lease) -> None:
        """The message's task has begun; written in the next batch."""
        self.settler.begin(lease)
        self._watch()

    def start(self, lease: Lease) -> None:
        """The message's task has begun and may not run again; written in the next batch."""
        self.settler.start(lease)
        self._watch()

    def release(self, leases: Collection[Lease]) -> None:
        """Give back at once what was not begun, or as soon as the database is there."""
        if leases:
            self._now_or_later(lambda: self._release(leases))

    def forsake(self, leases: Collection[Lease]) -> None:
        """A consumer is gone and with it what it held: give back all but what still runs."""
        if self.running is None:
            self.release(leases)
        else:
            # Right after a connection loss nobody can tell yet what the pool goes on with.
            self._unsorted.append((time.monotonic() + SORT_OUT_AFTER, frozenset(leases)))
            self._wake.set()

    def nack(self, lease: Lease) -> Outcome | None:
        """Put back after a failed delivery; None if that has to wait for a moment, or for the database."""
        return self._now_or_later(lambda: self._nack(lease))

    def never_began(self, lease: Lease) -> None:
        """The message's task was about to begin, and what says so may be written; but it has not."""
        self._unbegun.add(lease)

    def _release(self, leases: Collection[Lease]) -> None:
        unbegun = self._unbegun.intersection(leases)
        if unbegun:
            self._store.release(unbegun, though_started=True)
        if others := [lease for lease in leases if lease not in unbegun]:
            self._store.release(others)
        self._unbegun -= unbegun
        self._let_go(leases)

    def _nack(self, lease: Lease) -> Outcome:
        outcome = self._store.nack(lease, max_reclaims=self._max_reclaims)
        self._let_go([lease])
        if outcome is Outcome.DEAD:
            self.on_dead()
        return outcome

    def bury(self, lease: Lease, reason: Reason) -> None:
        """Set aside as dead."""
        self._now_or_later(lambda: self._bury(lease, reason))

    def _bury(self, lease: Lease, reason: Reason) -> None:
        self._store.bury(lease, reason)
        self._let_go([lease])
        if reason in (Reason.REJECTED, Reason.UNDECODABLE):
            self.on_dead()

    def holds(self, lease: Lease) -> bool:
        return lease in self._held

    def catch_up(self) -> None:
        """Do what had to wait for the database before anything else is asked of it.

        A consumer that ends late could take with it a queue that was declared anew. Raises what the stores raise.
        """
        self._do_deferred()

    def close(self) -> None:
        """Settle what is decided, let others have the rest at once, and end the thread."""
        self._closing = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)
        with self._alone():
            lessee, self._lessee = self._lessee, None
        try:
            self._do_deferred()
            self.settler.flush()
            if lessee is not None:
                self._store.release(self._held)
                self._held.clear()
                self._store.resign(lessee)
        except SQLQueueError as error:
            logger.warning("could not sign off, leases end by themselves within %s: %s", self._lease_for, error)

    def add_chore(self, chore: Chore) -> None:
        """Do this too, now and then."""
        self._chores.append(chore)

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        pid = os.getpid()
        while not self._closing and os.getpid() == pid:
            self._wake.wait(self._pause())
            self._wake.clear()
            if self._closing or os.getpid() != pid:
                return
            try:
                self._keep()
            except SQLQueueError as error:
                logger.warning("could not keep the leases, trying again: %s", error)
                self._grace_until = time.monotonic() + TRY_AGAIN + GRACE * self._lease_for.total_seconds()
                time.sleep(TRY_AGAIN)
            except Exception:
                logger.exception("unexpected error while keeping the leases")
                time.sleep(TRY_AGAIN)

    def _pause(self) -> float:
        now = time.monotonic()
        moments = [self._renew_at - now, self._expiry_at - now]
        moments += [chore.due_in() for chore in self._chores]
        moments += [at - now for at, _ in self._unsorted]
        self._watching = False
        if self.settler:
            self._watching = True
            moments.append(SETTLE_AFTER - self.settler.waited)
        if any(list(self._aheads)):
            self._watching = True
            moments.append(STALE_AFTER)
        return max(SHORTEST, min(moments))

    def _keep(self) -> None:
        # Nothing here waits for the consuming thread, which a signal handler may have stopped for long.
        # To stay alive comes first: the rest may take long where the database is slow.
        if time.monotonic() >= self._renew_at:
            self._renew()
        self._do_deferred()
        if self.settler.waited >= SETTLE_AFTER:
            self.settler.flush(wait=False)
        for ahead in list(self._aheads):
            self.release([delivery.lease for delivery in ahead.take_stale()])
        if time.monotonic() >= self._expiry_at:
            self._reclaim()
        self._sort_out()
        for chore in self._chores:
            chore.run()

    def _renew(self) -> None:
        lessee = self._lessee
        if lessee is not None and not self._store.renew(lessee):
            self._lost(lessee)
        elif lessee is not None and self._lock.acquire(blocking=False):
            try:
                self._release_strays(lessee)
            finally:
                self._lock.release()
        self._spare_others(time.monotonic() - self._renew_at)
        self._renew_at = time.monotonic() + RENEW_AT * self._lease_for.total_seconds()

    def _spare_others(self, late: float) -> None:
        """What made us `late`, so many seconds, may have kept others from renewing: let them come first now."""
        lease_for = self._lease_for.total_seconds()
        if late > LATE * lease_for:
            self._grace_until = time.monotonic() + GRACE * lease_for

    def _lost(self, lessee: int) -> None:
        with self._alone():
            if self._lessee != lessee:
                return  # it has signed off meanwhile
            logger.error(
                "this process was silent for longer than its lease of %s and was taken for dead;"
                " others may run its %d messages",
                self._lease_for,
                len(self._held),
            )
            self._lessee = None
            self._held.clear()

    def _release_strays(self, lessee: int) -> None:
        # A claim that was committed but not answered leased messages that nobody here knows of.
        if self._strays:
            strays = self._store.release_strays(lessee, self._held)
            self._strays = False
            if strays:
                logger.info("gave back %d messages of a claim that broke off", strays)

    def _reclaim(self) -> None:
        self._expiry_at = time.monotonic() + self._lease_for.total_seconds()
        until = self._store.next_expiry()
        # A look that is long ago counts for nothing: we were stopped ourselves since.
        suspected = self._suspected_at is not None and time.monotonic() - self._suspected_at < HESITATE + TRY_AGAIN
        self._suspected_at = None
        if until is None:
            return
        self._expiry_at = time.monotonic() + until.total_seconds() + 0.05
        if until or time.monotonic() < self._grace_until:
            self._expiry_at = max(self._expiry_at, self._grace_until)
            return
        if not suspected:
            self._suspected_at = time.monotonic()
            self._expiry_at = time.monotonic() + HESITATE
            return
        back = self._store.reclaim(max_reclaims=self._max_reclaims, limit=RECLAIM_BATCH)
        if back.ready or back.dead:
            logger.warning("took back %d messages of dead workers; %d more may not run again", back.ready, back.dead)
        if back.dead:
            self.on_dead()
        if back.ready + back.dead >= RECLAIM_BATCH:
            self._suspected_at = time.monotonic()
            self._expiry_at = time.monotonic()

    def _sort_out(self) -> None:
        now = time.monotonic()
        ripe = [leases for at, leases in self._unsorted if at <= now]
        self._unsorted = [entry for entry in self._unsorted if entry[0] > now]
        for leases in ripe:
            running = self.running() if self.running is not None else set()
            self.release([lease for lease in leases if lease not in running and lease in self._held])

    # -- small things ---------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            self._locked_by = threading.get_ident()
            try:
                yield
            finally:
                self._locked_by = None

    @property
    def _is_interrupted(self) -> bool:
        """Whether we are called by a signal handler that stopped this thread where it must not be called again.

        Celery cancels its consumers in such a handler. What waits for its own thread waits for ever.
        """
        return self._locked_by == threading.get_ident() or self._in_database()

    def _now_or_later(self, do: Callable[[], T]) -> T | None:
        """Do it, unless that cannot be just now: then our thread does, and goes on trying while the database is away.

        Nobody else would: whoever gives a lease back does not remember it, and who closes a channel closes it once.
        """
        if not self._is_interrupted:
            try:
                return do()
            except SQLQueueError as error:
                logger.debug("that has to wait: %s", error)
        self._defer(do)
        return None

    def _defer(self, do: Callable[[], object]) -> None:
        self._deferred.append(do)
        self._wake.set()

    def _do_deferred(self) -> None:
        with self._deferring:
            while self._deferred:
                do = self._deferred.popleft()
                try:
                    do()
                except SQLQueueError:
                    self._deferred.appendleft(do)
                    raise

    def _enrolled(self) -> int:
        if self._lessee is None:
            began = time.monotonic()
            self._lessee = self._store.enrol(self._name, lease_for=self._lease_for)
            self._spare_others(time.monotonic() - began)
            for queue in self._consumed.elements():
                self._routing.consume(queue, self._lessee)
            self._renew_at = time.monotonic() + RENEW_AT * self._lease_for.total_seconds()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sqlqueue-keeper", daemon=True)
            self._thread.start()
        return self._lessee

    def _let_go(self, leases: Collection[Lease]) -> None:
        self._held.difference_update(leases)

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self._wake.set()


def _nothing() -> None:
    """Nobody wants to know."""
