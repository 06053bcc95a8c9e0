"""The contract of the stores. What a docstring says here, the conformance suite proves.

Time is the database's. Callers pass durations, never deadlines, save for the due time of a
message, which is an instant by nature. Each method is one transaction of its own, unless the
store was obtained by `within`: then it takes part in the caller's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Protocol

from .messages import DeadMessage, Delivery, Lease, NewMessage, Outcome, Promoted, QueueCounts, Reason, Reclaimed

__all__ = ["MessageStore"]


class MessageStore(Protocol):
    """Messages as leased rows.

    A lease is held by a *lessee*, usually a process, and is good while the lessee renews itself.
    A lessee that stays silent for its whole lease may be taken for dead by anyone (`reclaim`).
    """

    # -- publishing -----------------------------------------------------------------------

    def publish(self, messages: Sequence[NewMessage], *, replaces: Lease | None = None, if_gone: bool = False) -> bool:
        """Store all of `messages`, durably, or none.

        With `replaces` the message of that lease is deleted in the same transaction. If a later
        delivery of it exists nothing is stored and the answer is False: whoever holds that one
        decides. Nor is anything stored for a message that is gone, because whoever held it later has
        settled it; unless, `if_gone`, it may have been forgotten while its task runs.

        Raises StoreUnavailableError if nothing was stored, OutcomeUnknownError if that cannot be
        known.
        """

    # -- lessees --------------------------------------------------------------------------

    @property
    def losses(self) -> int:
        """How often a connection was lost so far. What was done on it may have been done, and then been repeated."""

    def enrol(self, name: str, *, lease_for: timedelta) -> int:
        """A new lessee called `name`, good for `lease_for`; the answer is its number."""

    def renew(self, lessee: int) -> bool:
        """Make the lessee good for its `lease_for` from now; False if it has been taken for dead."""

    def resign(self, lessee: int) -> None:
        """The lessee is leaving. What it still holds is lost at once, as if its lease had ended."""

    def reclaim(self, *, max_reclaims: int, limit: int) -> Reclaimed:
        """Take back up to `limit` messages of lessees whose lease has ended when this is called.

        A started message dies (`WORKER_LOST`): its author asked for at most once. Any other costs
        a reclaim, save those that wait behind a begun one, which are innocent of their holder's death;
        past `max_reclaims` it dies, else it is ready again. A lessee that loses its
        messages is taken for dead from then on. A database that was down for a while gives every
        lessee a whole lease, counted from its start, to come back.
        """

    def next_expiry(self) -> timedelta | None:
        """How long until the first lessee's lease ends (zero if one has), None if there is none."""

    # -- deliveries -----------------------------------------------------------------------

    def claim(self, queues: Sequence[str], *, limit: int, lessee: int) -> list[Delivery]:
        """Lease up to `limit` ready messages of `queues` to the lessee.

        Within a queue the higher priority comes first, then first in first out. Queues share the
        claim and take turns at its head: none starves. No message goes to two holders. An expired
        message is deleted instead of being delivered. An empty answer means that nothing is ready.
        """

    def ack(self, leases: Collection[Lease]) -> set[Lease]:
        """Forget the messages of these leases; the answer tells which leases were still good."""

    def begin(self, leases: Collection[Lease]) -> set[Lease]:
        """Mark as begun: if the holder dies, it may have died of these. Returns those still good."""

    def start(self, leases: Collection[Lease]) -> set[Lease]:
        """Mark as started: never delivered again, yet leased until acked. Returns those still good."""

    def release(self, leases: Collection[Lease], *, though_started: bool = False) -> set[Lease]:
        """Give back unharmed: ready at once, and nothing is counted. Returns those still good.

        Released messages come before those that never left. A started message is not given back, unless it is known
        that its task has not begun though it was about to.
        """

    def nack(self, lease: Lease, *, max_reclaims: int) -> Outcome:
        """Put back after a failed delivery: ready at once, or dead past `max_reclaims`."""

    def bury(self, lease: Lease, reason: Reason) -> bool:
        """Set aside as dead, to be seen and redriven by an operator. False if the lease is lost.

        The failure of what was refused or cannot be decoded is to be recorded if somebody owns it.
        """

    def release_strays(self, lessee: int, held: Collection[Lease]) -> int:
        """Release what the lessee holds without knowing: a claim whose answer never arrived."""

    # -- messages that somebody owns -------------------------------------------------------

    def settle(self, lease: Lease) -> bool:
        """Delete the message of this lease; False if a later delivery of it exists: whoever has that one decides."""

    def is_alive(self, lease: Lease) -> bool:
        """Whether the message of this lease is still there and not dead, whoever has it now."""

    def withdraw(self, owner: str, tasks: Collection[str]) -> set[str]:
        """Delete the messages of these tasks (ids) of the owner that nobody holds, parked ones too; the answer is which there
        were."""

    def owned(self, owners: Collection[str]) -> set[tuple[str, str]]:
        """Owner and task id of each message that these own, of dead ones too while they are parked or their failure is to
        be recorded."""

    # -- time -----------------------------------------------------------------------------

    def promote(self, *, limit: int, by: str | None = None) -> Promoted:
        """Make up to `limit` delayed messages that are due ready.

        All who wait for their queues are told, save for the waiter called `by`, who looks by itself. The next
        one may be due now: there are more, or somebody else has it.
        """

    def next_due(self) -> timedelta | None:
        """How long until the first delayed message is due (zero if one is), None if none waits."""

    def expire(self, *, limit: int) -> int:
        """Delete up to `limit` expired messages that nobody holds; the answer is how many."""

    # -- dead messages --------------------------------------------------------------------

    def claim_reports(self, *, limit: int, lease_for: timedelta) -> list[DeadMessage]:
        """Dead tasks whose failure nobody has recorded yet. They are asked for again after `lease_for`."""

    def reported(self, ids: Collection[int]) -> None:
        """The failures of these dead messages are recorded; never ask again."""

    def redrive(self, ids: Collection[int]) -> int:
        """Make dead messages ready again, their reclaims forgotten; the answer is how many.

        Not those whose owner has been told of their end: nothing that became of them would count.
        """

    def unpark(self, tasks: Collection[str], *, limit: int) -> int:
        """Make up to `limit` messages that are parked as `UNKNOWN_TASK` ready again: these tasks are known."""

    # -- operating ------------------------------------------------------------------------

    def purge(self, queue: str) -> int:
        """Delete what waits in the queue, delayed or ready, not what is leased; returns how many."""

    def counts(self, queues: Collection[str] | None = None) -> list[QueueCounts]:
        """How many messages are where, for each queue that has any, in order of name."""
