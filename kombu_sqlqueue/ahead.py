"""Messages claimed ahead of a prefetch window: as many as its consumer starts within a moment.

One claim of many messages costs little more than one of a single message, so short tasks come in
large claims. Long ones never wait here: others shall have them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection

from .messages import Delivery

__all__ = ["STALE_AFTER", "Ahead"]

#: Claim ahead what is started within so many seconds.
HORIZON = 0.05
#: How many messages one claim takes ahead. Few different numbers, as the database plans a statement for each.
SIZES = (0, 8, 16, 24, 32, 48, 64, 100)
#: How fast messages are started is measured anew each time so many seconds have passed.
MEASURE_FOR = 0.02
#: What waits here for so many seconds while nothing is started is given back.
STALE_AFTER = 0.1


class Ahead:
    """What one channel has claimed and not delivered. One thread puts and takes; any may take back."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._waiting: deque[Delivery] = deque()
        self._moved_at = 0.0
        self._rate = 0.0
        self._started = 0
        self._measured_at = monotonic()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> Delivery | None:
        """The one that `take` would answer."""
        try:
            return self._waiting[0]
        except IndexError:
            return None

    def put(self, deliveries: Collection[Delivery]) -> None:
        self._moved_at = self._monotonic()
        self._waiting.extend(deliveries)

    def take(self) -> Delivery | None:
        """The next one to deliver, None if there is none."""
        try:
            delivery = self._waiting.popleft()
        except IndexError:
            return None
        self._moved_at = self._monotonic()
        return delivery

    def started(self) -> None:
        """A delivered message has left the window: its task began, or ended if it is acked late."""
        self._started += 1

    @property
    def is_quick(self) -> bool:
        """Whether messages are started so fast that some are claimed ahead."""
        return self._rate * HORIZON >= SIZES[1]

    def limit(self, room: int) -> int:
        """How many messages to claim for a window with this room: as many, or with those beyond it one of SIZES."""
        most = room + self._allowance()
        return max(room, *(size for size in SIZES if size <= most))

    def _allowance(self) -> int:
        now = self._monotonic()
        elapsed = now - self._measured_at
        if elapsed >= MEASURE_FOR:
            self._rate = self._started / elapsed
            self._started = 0
            self._measured_at = now
        return int(self._rate * HORIZON)

    def take_back(self, which: Callable[[Delivery], bool]) -> list[Delivery]:
        """Those that nobody shall be given any more."""
        taken = []
        while (delivery := self.take()) is not None:
            taken.append(delivery)
        self._waiting.extend(delivery for delivery in taken if not which(delivery))
        return [delivery for delivery in taken if which(delivery)]

    def take_stale(self) -> list[Delivery]:
        """All of them, if none was taken for a while. Any thread may ask."""
        if not self._waiting or self._monotonic() - self._moved_at < STALE_AFTER:
            return []
        return self.take_back(lambda delivery: True)
