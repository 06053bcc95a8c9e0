"""Where in each lane a claim begins to look, so that it does not walk over what was claimed long ago.

An index keeps entries of claimed messages until a vacuum, and a transaction that stays open holds
vacuums back. A claim that began at the head of its lane would walk over all of them; one that
begins at its *floor*, the position of the last message claimed, does not.

But a position is drawn before it is committed: a slow writer may commit a lower one when the floor
has passed it. So claims look further back now and then. Writers that draw at about the same time
are covered by a margin. For others the time is divided by *ticks*, which remember the floors of
their moment and which transactions could still be open then:

- once a tick one claim begins at the floors of two ticks ago;
- once all transactions that could be open at a tick have ended, one claim begins at the floors of
  two ticks before it: whatever they wrote was placed after that;
- every ten seconds one claim begins at the head: the last resort for who is behind the floors in
  another way. One such way is a sequence that a crash of the server has set back: so one claim
  begins at the head after each outage.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["HEAD", "Floors", "Lane"]

#: Below every position.
HEAD = -(2**63)
#: Positions behind the last one claimed that every claim walks, in case they are committed late.
MARGIN = 100
#: Seconds between two ticks.
TICK = 0.25
#: Seconds between two looks from the head.
LOOK_FROM_HEAD = 10.0
#: Ticks that wait for their transactions. When there are more, neighbours become one.
MOST_TICKS = 64
#: Seconds after which a queue that nobody claims from is forgotten.
FORGET_AFTER = 60.0


class Lane(NamedTuple):
    """A range of positions in one priority of one queue: those that came back, or those that never left."""

    queue: str
    priority: int
    ahead: bool


@dataclass(frozen=True, slots=True)
class _Tick:
    """All transactions below `next_id` that were open at the tick end some time; look from `begin` then."""

    next_id: int
    begin: Mapping[Lane, int]


class Floors:
    """The floors of one process. Moments are seconds of a clock that never goes back."""

    def __init__(self, *, margin: int = MARGIN) -> None:
        self._margin = margin
        self._lock = threading.Lock()
        self._floors: dict[Lane, int] = {}
        self._back: dict[Lane, int] = {}
        self._head_at: dict[str, float] = {}
        self._used_at: dict[str, float] = {}
        self._recent: deque[Mapping[Lane, int]] = deque([{}, {}], maxlen=2)
        self._open: list[_Tick] = []
        self._ticked_at: float | None = None

    def wants_tick(self, now: float) -> bool:
        """Whether it is time to ask the database which transactions are open. Says so to one caller only."""
        with self._lock:
            if self._ticked_at is not None and now < self._ticked_at + TICK:
                return False
            if self._ticked_at is not None and not self._open and all(each == self._floors for each in self._recent):
                # The floors have rested for two ticks: whoever has begun since is placed after them.
                return False
            self._ticked_at = now
            return True

    def tick(self, oldest_open: int, next_id: int, now: float) -> None:
        """Every transaction below `oldest_open` has ended, none at or above `next_id` has begun."""
        with self._lock:
            two_ago = self._recent[0]
            self._go_back(two_ago)
            for tick in self._open:
                if tick.next_id <= oldest_open:
                    self._go_back(tick.begin)
            self._open = [tick for tick in self._open if tick.next_id > oldest_open]
            if two_ago != self._floors:
                self._open.append(_Tick(next_id, two_ago))
            if len(self._open) > MOST_TICKS:
                self._open = list(_merged(self._open))
            self._forget(now)
            self._recent.append(dict(self._floors))

    def start(self, queues: Collection[str], now: float) -> dict[Lane, int]:
        """Where in each lane a claim of these queues begins; lanes that are not listed begin at their head."""
        with self._lock:
            for queue in queues:
                self._used_at[queue] = now
                if now >= self._head_at.setdefault(queue, now + LOOK_FROM_HEAD):
                    self._head_at[queue] = now + LOOK_FROM_HEAD
                    self._back.update((lane, HEAD) for lane in self._floors if lane.queue == queue)
            return {lane: self._back.get(lane, floor) for lane, floor in self._floors.items() if lane.queue in queues}

    def mistrust(self) -> None:
        """The next claim of each lane begins at its head."""
        with self._lock:
            self._back.update(dict.fromkeys(self._floors, HEAD))

    def claimed(self, start: Mapping[Lane, int], last: Mapping[Lane, int], emptied: Collection[str]) -> None:
        """A claim that began at `start` is done.

        `last` has the greatest position it found in each lane, and of the `emptied` queues it saw
        the end. A lane of which it saw neither is still to be looked through.
        """
        with self._lock:
            for lane, at in start.items():
                if (lane in last or lane.queue in emptied) and self._back.get(lane) == at:
                    del self._back[lane]
            # It may fall: what came late may be the first of many.
            self._floors.update((lane, position - self._margin) for lane, position in last.items())

    def _go_back(self, begin: Mapping[Lane, int]) -> None:
        for lane, floor in self._floors.items():
            # A lane that had no floor then: what was written may be anywhere in it.
            at = begin.get(lane, HEAD)
            if at < floor:
                self._back[lane] = min(at, self._back.get(lane, at))

    def _forget(self, now: float) -> None:
        unused = {queue for queue, at in self._used_at.items() if at + FORGET_AFTER < now}
        if not unused:
            return
        for queue in unused:
            del self._used_at[queue]
            self._head_at.pop(queue, None)
        self._floors = {lane: floor for lane, floor in self._floors.items() if lane.queue not in unused}
        self._back = {lane: floor for lane, floor in self._back.items() if lane.queue not in unused}


def _merged(ticks: Iterable[_Tick]) -> Iterable[_Tick]:
    """Each two neighbours as one: it ends with the later one and looks from where the earlier one did."""
    ticks = iter(ticks)
    for earlier in ticks:
        later = next(ticks, earlier)
        yield _Tick(later.next_id, earlier.begin)
