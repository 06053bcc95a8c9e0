"""The contract of the outbox: messages that wait to be passed on to another broker, and whose turn it is to do so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from .messages import Reason

__all__ = ["OUTBOX", "OutboxStore", "Outgoing"]

#: The queue whose messages are the outbox. No worker consumes from it.
OUTBOX = "sqlqueue.outbox"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message of the outbox, as it was stored."""

    id: int
    envelope: str
    body: bytes
    task_id: str | None
    task: str | None


class OutboxStore(Protocol):
    """The outbox of one database.

    One relay at a time has the turn. It is a lessee, and has the turn as long as it renews itself;
    so nothing needs to be leased message by message, and a relay that dies leaves all in its place.
    """

    def take_turn(self, lessee: int) -> bool:
        """Whether it is the lessee's turn: it had it, or nobody alive has."""

    def leave_turn(self, lessee: int) -> None:
        """The lessee's turn is over, if it had it; whoever waits for that is told."""

    def read(self, lessee: int, *, limit: int, spare: timedelta) -> list[Outgoing] | None:
        """The first `limit` messages in line; None unless the lessee has the turn, for `spare` at least.

        In line are all that are committed, by the order in which they were stored: one that was committed
        late comes first, if it was stored first.
        """

    def forget(self, ids: Collection[int]) -> int:
        """Delete messages that were passed on; the answer is how many. Losing it in a crash repeats them."""

    def bury(self, id: int, reason: Reason) -> bool:
        """Set a message aside as dead; False if it is gone."""
