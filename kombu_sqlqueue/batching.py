"""What is sent together is stored together: in one transaction, by one statement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import SQLQueueError, StoreUnavailableError
from .messages import NewMessage
from .store import MessageStore
from .transactions import current, is_inside

__all__ = ["Batch", "Newest", "current_batch", "together"]

#: What was added at once, and where it is to be stored.
Newest = tuple[MessageStore, Sequence[NewMessage]]


class Batch:
    """Messages that wait for their like, in the order in which they were sent."""

    def __init__(self, hold_for: float | None, *, is_within: bool) -> None:
        #: Whether it began inside a transaction that is open, and ends there.
        self.is_within = is_within
        # No other thread may write there.
        self._hold_for = None if is_within else hold_for
        self._lock = threading.Lock()
        self._messages: dict[MessageStore, list[NewMessage]] = {}
        self._timer: threading.Timer | None = None
        self._error: SQLQueueError | None = None
        #: What was added last.
        self.newest: Newest | None = None

    def add(self, store: MessageStore, messages: Sequence[NewMessage]) -> None:
        with self._lock:
            self._messages.setdefault(store, []).extend(messages)
            self.newest = store, messages
        if self._hold_for is not None and self._timer is None:
            # By a thread: the sender may be busy with what it sends next for as long as it likes.
            self._timer = threading.Timer(self._hold_for, self._publish_early)
            self._timer.daemon = True
            self._timer.start()

    def publish(self) -> None:
        """Store them. Raises what the store raises; after StoreUnavailableError it may be called again."""
        with self._lock:
            error, self._error = self._error, None
            if error is not None:
                raise error
            for store in list(self._messages):
                messages = self._messages.pop(store)
                try:
                    store.publish(messages)
                except StoreUnavailableError:
                    self._messages[store] = messages
                    raise

    def close(self) -> None:
        """Nothing is published by itself from now on."""
        if self._timer is not None:
            self._timer.cancel()

    def _publish_early(self) -> None:
        self._timer = None
        try:
            self.publish()
        except StoreUnavailableError:
            pass  # the sender tries again at the end
        except SQLQueueError as error:
            self._error = error


_batch: ContextVar[Batch | None] = ContextVar("batch", default=None)


def current_batch() -> Batch | None:
    """Where to put what this thread or task sends; None if it is to be stored at once."""
    return _batch.get()


@contextmanager
def together(publish: Callable[[Batch], object], *, hold_for: float | None = None) -> Iterator[None]:
    """Let `publish` store at the end what is sent inside, or nothing of it after an error. Nests.

    With `hold_for`, what takes longer than so many seconds is published in parts.
    """
    if _batch.get() is not None:
        yield
        return
    batch = Batch(hold_for, is_within=current() is not None or is_inside())
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)
        batch.close()
    publish(batch)
