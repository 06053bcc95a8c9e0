"""What is sent together is stored together: in one transaction, by one statement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from .messages import NewMessage
from .store import MessageStore

__all__ = ["Batch", "current_batch", "together"]


class Batch:
    """Messages that wait for their like, in the order in which they were sent."""

    def __init__(self, flush: Callable[[Batch], object], hold_for: float) -> None:
        self._flush = flush
        self._hold_for = hold_for
        self._flushed_at = self._added_at = time.monotonic()
        self._messages: dict[MessageStore, list[NewMessage]] = {}

    def add(self, store: MessageStore, messages: Sequence[NewMessage]) -> None:
        self._messages.setdefault(store, []).extend(messages)
        now = time.monotonic()
        # The next one may be as long in coming as this one was.
        if now - min(self._added_at, self._flushed_at) > self._hold_for:
            self.flush()
        self._added_at = now

    def flush(self) -> None:
        """Publish as the batch was told to, whoever is to repeat it."""
        self._flushed_at = time.monotonic()
        self._flush(self)

    def publish(self) -> None:
        """Store them. Raises what the store raises, and may be called again then."""
        for store in list(self._messages):
            store.publish(self._messages[store])
            del self._messages[store]


_batch: ContextVar[Batch | None] = ContextVar("batch", default=None)


def current_batch() -> Batch | None:
    """Where to put what this thread or task sends; None if it is to be stored at once."""
    return _batch.get()


@contextmanager
def together(flush: Callable[[Batch], object] = Batch.publish, *, hold_for: float = math.inf) -> Iterator[None]:
    """Let `flush` publish at the end what is sent inside, or nothing of it after an error. Nests.

    What takes longer than `hold_for` seconds is published in parts.
    """
    if _batch.get() is not None:
        yield
        return
    batch = Batch(flush, hold_for)
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)
    batch.flush()
