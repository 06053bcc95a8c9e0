"""The prefetch window of one channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["QoS"]

#: What one claim takes for a consumer that set no prefetch window.
UNBOUNDED_CLAIM = 100


class QoS:
    """Which messages a channel's consumers hold unacked, and how many more they may.

    Messages are added by the consuming thread; any thread may remove them.
    """

    def __init__(self) -> None:
        self.prefetch_count = 0
        #: Tells how many messages somebody has use for now; None if the window alone decides.
        self.wanted: Callable[[], int] | None = None
        self._delivered: dict[str, Any] = {}

    def can_consume(self) -> bool:
        return self.can_consume_max_estimate() > 0

    def can_consume_max_estimate(self) -> int:
        """How many more messages may be delivered."""
        room = self.prefetch_count - len(self._delivered) if self.prefetch_count else UNBOUNDED_CLAIM
        return max(0, room if self.wanted is None else min(room, self.wanted()))

    def append(self, message: Any, delivery_tag: str) -> None:
        self._delivered[delivery_tag] = message

    def discard(self, delivery_tag: str) -> None:
        self._delivered.pop(delivery_tag, None)

    def get(self, delivery_tag: str) -> Any:
        return self._delivered[delivery_tag]

    def tags(self) -> list[str]:
        """The tags of all unacked messages."""
        return list(self._delivered)

    def take_all(self) -> list[str]:
        """Forget all unacked messages and tell their tags."""
        tags = self.tags()
        for tag in tags:
            self._delivered.pop(tag, None)
        return tags
