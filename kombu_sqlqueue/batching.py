"""What is sent together is stored together: in one transaction, by one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from .messages import NewMessage
from .store import MessageStore

__all__ = ["Batch", "current_batch", "together"]


class Batch:
    """Messages that wait for their like, in the order in which they were sent."""

    def __init__(self) -> None:
        self._messages: dict[MessageStore, list[NewMessage]] = {}

    def add(self, store: MessageStore, messages: Sequence[NewMessage]) -> None:
        self._messages.setdefault(store, []).extend(messages)

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
def together(publish: Callable[[Batch], object] = Batch.publish) -> Iterator[None]:
    """Let `publish` store at the end what is sent inside, or nothing of it after an error. Nests."""
    if _batch.get() is not None:
        yield
        return
    batch = Batch()
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)
    publish(batch)
