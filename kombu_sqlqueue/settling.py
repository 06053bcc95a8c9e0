"""Acks and started marks on their way to the database, in batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from .errors import SQLQueueError
from .messages import Lease
from .store import MessageStore

__all__ = ["Settler"]

logger = logging.getLogger(__name__)

#: Decisions are written after so many seconds, or when there are so many acks.
WAIT_FOR = 0.02
MANY = 100


class Settler:
    """Collects what consumers have decided about their leases, from any thread.

    `flush` writes it: the consumer calls it when it is `due` and before it claims, the keeper where
    a busy loop comes too late. What could not be written is tried again at the next flush.
    """

    def __init__(self, store: MessageStore, *, on_settled: Callable[[Collection[Lease]], object]) -> None:
        self._store = store
        self._on_settled = on_settled
        # Celery acks from signal handlers, too: they may have interrupted us in here.
        self._lock = threading.RLock()
        self._writing = threading.Lock()
        self._acks: list[Lease] = []
        self._begins: list[Lease] = []
        self._starts: list[Lease] = []
        #: The marks that the last flush spared.
        self._seen: set[Lease] = set()
        self._waiting_since: float | None = None

    def __len__(self) -> int:
        return len(self._acks) + len(self._starts) + len(self._begins)

    @property
    def waited(self) -> float:
        """For how many seconds the oldest decision has been waiting; 0 if there is none."""
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def due(self) -> bool:
        """Whether there is enough to write, or it has waited for long enough."""
        return len(self._acks) >= MANY or self.waited >= WAIT_FOR

    @property
    def has_starts(self) -> bool:
        """Whether tasks that may not run again have begun of which nothing is written yet."""
        return bool(self._starts)

    @property
    def has_marks(self) -> bool:
        """Whether tasks have begun of which nothing is written yet."""
        return bool(self._begins or self._starts)

    def ack(self, lease: Lease) -> None:
        """The message is done with."""
        with self._lock:
            self._acks.append(lease)
            self._waiting_since = self._waiting_since or time.monotonic()

    def begin(self, lease: Lease) -> None:
        """The message's task has begun; it may run again."""
        with self._lock:
            self._begins.append(lease)
            self._waiting_since = self._waiting_since or time.monotonic()

    def start(self, lease: Lease) -> None:
        """The message's task has begun and may not run again."""
        with self._lock:
            self._starts.append(lease)
            self._waiting_since = self._waiting_since or time.monotonic()

    def forget(self, lease: Lease) -> None:
        """Somebody else has settled the message: nothing is to be written of it any more."""
        with self._lock:
            self._begins = [begun for begun in self._begins if begun != lease]

    def flush(self, *, spare_young: bool = False, spare_begun: bool = False, wait: bool = True) -> None:
        """Write all decisions, or spare the marks of tasks that began since the last flush: of those that
        are over at the next one nothing but the ack is written. With `spare_begun`, only those that may run again.

        Somebody else who is writing is waited for, or left alone. Raises what the store raises, and keeps the
        decisions then.
        """
        if not self or not self._writing.acquire(blocking=wait):
            return
        try:
            acks, starts, begins = self._take(spare_young, spare_young or spare_begun)
            try:
                self._write(self._store.begin, begins)
                begins = []
                self._write(self._store.start, starts)
                starts = []
                self._write(self._store.ack, acks)
            except SQLQueueError:
                self._put_back(acks, starts, begins)
                raise
        finally:
            self._writing.release()
        self._on_settled(acks)

    def _take(self, spare_starts: bool, spare_begins: bool) -> tuple[list[Lease], list[Lease], list[Lease]]:
        with self._lock:
            acks, self._acks = self._acks, []
            over = set(acks)

            def ripe(marks: list[Lease], spare: bool) -> tuple[list[Lease], list[Lease]]:
                wanted = [lease for lease in marks if lease not in over]
                old = [lease for lease in wanted if not spare or lease in self._seen]
                return old, [lease for lease in wanted if spare and lease not in self._seen]

            starts, self._starts = ripe(self._starts, spare_starts)
            begins, self._begins = ripe(self._begins, spare_begins)
            self._seen = {*self._starts, *self._begins}
            self._waiting_since = time.monotonic() if self._seen else None
        return acks, starts, begins

    def _put_back(self, acks: list[Lease], starts: list[Lease], begins: list[Lease]) -> None:
        with self._lock:
            self._acks[:0] = acks
            self._starts[:0] = starts
            self._begins[:0] = begins
            self._waiting_since = time.monotonic()

    def _write(self, write: Callable[[Collection[Lease]], set[Lease]], leases: list[Lease]) -> None:
        if not leases:
            return
        # One that is gone may have been replaced by its own retry: no fault to tell anyone of.
        gone = set(leases) - write(leases)
        if gone:
            logger.debug("already settled or lost: %s", ", ".join(sorted(lease.tag for lease in gone)))
