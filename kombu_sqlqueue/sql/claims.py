"""Claiming: queues share what is claimed and take turns, and what has expired is deleted on the way."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from .claim_lateral import LateralClaim
from .claim_stepwise import StepwiseClaim
from .database import Database
from .dialect import Capability
from .direct import Direct
from .floors import Floors, Lane
from .work import Work

__all__ = ["Claims"]


class Claim(Protocol):
    """One way to say it in SQL."""

    def take(
        self, work: Work, queues: Sequence[str], *, share: int, room: int, lessee: int, start: Mapping[Lane, int]
    ) -> Sequence[Any]:
        """Lease up to `room` messages, up to `share` of each queue, the first queues first."""


class Claims:
    """Claims of one process. It remembers how far it has come in each lane."""

    def __init__(self, database: Database, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._database = database
        self._losses = 0
        horizon = database.dialect.horizon()
        self._horizon = None if horizon is None else Direct(database, horizon)
        self._turns = itertools.count()
        self._floors = Floors() if Capability.LATE_COMMITS in database.dialect.capabilities else None
        # In a transaction of the caller's whether a commit waits for the disk is not ours to say.
        lateral = Capability.LATERAL in database.dialect.capabilities
        self._own: Claim = LateralClaim(database, unhurried=True) if lateral else StepwiseClaim(database)
        self._within: Claim = LateralClaim(database, unhurried=False) if lateral else self._own

    def claim(self, work: Work, queues: Sequence[str], *, limit: int, lessee: int) -> list[Any]:
        """Lease up to `limit` ready messages, among them some that have expired, in the order of their delivery."""
        asked = self._in_turn(queues)
        floors = self._floors if work.own else None
        if floors is not None and self._losses != self._database.losses:
            self._losses = self._database.losses
            floors.mistrust()
        if floors is not None and floors.wants_tick(self._monotonic()):
            self._tick(work, floors)
        start = floors.start(asked, self._monotonic()) if floors is not None else {}
        rows, emptied = self._fill(work, asked, limit, lessee, start)
        if floors is not None:
            floors.claimed(start, _last(rows), emptied)
        return sorted(rows, key=lambda row: (-row.priority, row.position))

    def _in_turn(self, queues: Sequence[str]) -> list[str]:
        """Each queue once, another one first each time."""
        each = list(dict.fromkeys(queues))
        first = next(self._turns) % len(each) if each else 0
        return each[first:] + each[:first]

    def _fill(
        self, work: Work, queues: list[str], limit: int, lessee: int, start: Mapping[Lane, int]
    ) -> tuple[list[Any], set[str]]:
        """Claim a like share of each queue, and again of those that have more while there is room.

        The answer is what was claimed, and of which queues there was no more.
        """
        claim = self._own if work.own else self._within
        rows: list[Any] = []
        emptied: set[str] = set()
        room = limit
        while queues and room > 0:
            share = -(-room // len(queues))
            taken = claim.take(work, queues, share=share, room=room, lessee=lessee, start=start)
            rows += taken
            of_queue = Counter(row.queue for row in taken)
            if len(taken) < room:
                emptied.update(queue for queue in queues if of_queue[queue] < share)
            queues = [queue for queue in queues if of_queue[queue] >= share]
            # What has expired takes no room, but the lease of its last holder.
            room -= sum(not row.expired for row in taken)
        return rows, emptied

    def _tick(self, work: Work, floors: Floors) -> None:
        horizon = self._horizon
        if horizon is not None:
            ((oldest_open, next_id),) = work.statement(lambda tx: horizon(tx, {}))
            floors.tick(oldest_open, next_id, self._monotonic())


def _last(rows: Iterable[Any]) -> dict[Lane, int]:
    """The greatest position of each lane."""
    last: dict[Lane, int] = {}
    for row in rows:
        lane = Lane(row.queue, row.priority, row.position < 0)
        last[lane] = max(row.position, last.get(lane, row.position))
    return last
