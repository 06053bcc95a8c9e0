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


class Settler:
    """Collects what consumers have decided about their leases, from any thread.

    `flush` writes it: the consumer calls it once a turn of its loop, the keeper where a busy
    loop comes too late. What could not be written is tried again at the next flush.
    """

    def __init__(self, store: MessageStore, *, on_settled: Callable[[Collection[Lease]], object]) -> None:
        self._store = store
        self._on_settled = on_settled
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._acks: list[Lease] = []
        self._begins: list[Lease] = []
        self._starts: list[Lease] = []
        self._waiting_since: float | None = None

    def __len__(self) -> int:
        return len(self._acks) + len(self._starts) + len(self._begins)

    @property
    def waited(self) -> float:
        """For how many seconds the oldest decision has been waiting; 0 if there is none."""
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

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

    def flush(self) -> None:
        """Write all decisions. Raises what the store raises, and keeps them then."""
        if not self:
            return
        with self._writing:
            acks, starts, begins = self._take()
            # One that began and ended since the last flush needs no mark in between.
            over = set(acks)
            try:
                self._write(self._store.begin, [lease for lease in begins if lease not in over])
                begins = []
                self._write(self._store.start, [lease for lease in starts if lease not in over])
                starts = []
                self._write(self._store.ack, acks)
            except SQLQueueError:
                self._put_back(acks, starts, begins)
                raise
        self._on_settled(acks)

    def _take(self) -> tuple[list[Lease], list[Lease], list[Lease]]:
        with self._lock:
            acks, self._acks = self._acks, []
            starts, self._starts = self._starts, []
            begins, self._begins = self._begins, []
            self._waiting_since = None
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
