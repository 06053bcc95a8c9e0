"""Noticing that messages were published, at the price of a small query now and then."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from sqlalchemy import Connection, Engine, bindparam, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import SQLQueueError, StoreUnavailableError
from ..topics import later_topic, queue_topic
from .dialect import COMMITS_ITSELF
from .gate import GATE
from .schema import Tables

__all__ = ["Glancer"]

#: After a while in which nothing was published, the next look comes after this share of it, but at
#: least and at most after so many seconds.
SHARE = 0.05
SOONEST = 0.01
LATEST = 0.25
#: Messages that one look takes in.
MOST = 1000


class Glancer:
    """Looks for messages with a higher number than those seen. `wait` belongs to one thread, `interrupt` to any.

    What becomes ready in another way, or is committed later than one with a higher number, it does
    not see: that is found by polling.
    """

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine.execution_options(**{COMMITS_ITSELF: True})
        m = tables.message.c
        self._last = select(func.max(m.id))
        self._new = select(m.id, m.queue, m.due_at).where(m.id > bindparam("seen")).order_by(m.id).limit(MOST)
        self._connection: Connection | None = None
        self._interrupted = threading.Event()
        self._seen = 0
        self._found_at = time.monotonic()

    def wait(self, timeout: float) -> frozenset[str] | None:
        """The queues that got messages, as soon as any did; empty if none did within `timeout` seconds.

        None if some may have been missed. Raises StoreUnavailableError if the connection is gone;
        the next call makes a new one.
        """
        until = time.monotonic() + timeout
        while True:
            found = self._look()
            left = until - time.monotonic()
            if found is None or found or left <= 0:
                return found
            if self._interrupted.wait(min(left, self._pause())):
                self._interrupted.clear()
                return frozenset()

    def interrupt(self) -> None:
        """Make `wait` return soon."""
        self._interrupted.set()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.close()

    def _pause(self) -> float:
        return min(LATEST, max(SOONEST, (time.monotonic() - self._found_at) * SHARE))

    def _look(self) -> frozenset[str] | None:
        try:
            with GATE:
                if self._connection is not None:
                    return self._glance(self._connection)
                self._begin()
                return None
        except (DBAPIError, PoolTimeout, SQLQueueError) as error:
            self.close()
            said = getattr(error, "orig", None) or error
            raise StoreUnavailableError(f"the connection that looks for messages is gone: {said}") from error

    def _begin(self) -> None:
        self._connection = connection = self._engine.connect()
        # Outside of the pool, which shall not lack it.
        connection.detach()
        self._seen = connection.scalar(self._last) or 0

    def _glance(self, connection: Connection) -> frozenset[str]:
        rows = connection.execute(self._new, {"seen": self._seen}).all()
        if rows:
            self._seen = rows[-1].id
            self._found_at = time.monotonic()
        return frozenset((queue_topic if row.due_at is None else later_topic)(row.queue) for row in rows)
