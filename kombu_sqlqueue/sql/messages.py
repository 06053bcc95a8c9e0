"""The message store in SQL. Each public method is one transaction, or a few bounded ones."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection

from ..messages import DeadMessage, Delivery, Lease, NewMessage, Outcome, Promoted, QueueCounts, Reason, Reclaimed
from .claims import Claims
from .database import Database
from .dead import Dead
from .leases import Leases
from .lessees import Lessees
from .owned import Owned
from .positions import Positions
from .publishing import Commit, Publishing
from .waiting import Waiting
from .work import Work

__all__ = ["SQLMessageStore"]

#: How many messages one transaction of a purge deletes.
PURGE_BATCH = 5000


class SQLMessageStore:
    """Implements `kombu_sqlqueue.store.MessageStore`."""

    def __init__(self, database: Database, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`monotonic` tells the seconds by which claims look back for what was committed late."""
        self._database = database
        self._work = Work(database)
        self._positions = Positions(database)
        self._publishing = Publishing(database, self._positions)
        self._claims = Claims(database, monotonic=monotonic)
        self._leases = Leases(database, self._positions)
        self._dead = Dead(database, self._positions)
        self._lessees = Lessees(database, self._positions, self._dead)
        self._waiting = Waiting(database, self._positions)
        self._owned = Owned(database)

    def within(self, connection: Connection) -> SQLMessageStore:
        """The same store inside the caller's transaction: what it does takes effect if the caller commits."""
        inner = copy.copy(self)
        inner._work = Work(self._database, connection)
        return inner

    # -- publishing -----------------------------------------------------------------------

    def publish(self, messages: Sequence[NewMessage], *, replaces: Lease | None = None, if_gone: bool = False) -> bool:
        lanes = self._publishing.unknown_lanes(messages)
        if lanes and self._database.has_writers:
            # By itself, and at once: publishers of one new lane would wait for each other's commits.
            self._database.statement(lambda tx: self._publishing.add_lanes(tx, lanes))
            self._publishing.remember_lanes(lanes)
            lanes = set()

        # A retry is told to Celery as done when this returns, whatever becomes of the caller's transaction.
        joins = replaces is None
        own = self._work.own and not (joins and self._database.in_transaction)
        unhurried = joins and all(message.transient for message in messages)
        commit = Commit.FOREIGN if not own else Commit.UNHURRIED if unhurried else Commit.DURABLE

        def publish(tx: Connection) -> bool:
            if replaces is not None and not self._publishing.replace(tx, replaces, if_gone=if_gone):
                return False
            if lanes:
                self._publishing.add_lanes(tx, lanes)
            if messages:
                self._publishing.store(tx, messages, commit)
            return True

        published = self._work.run(publish, repeatable=False, joins=joins)
        if published and own:
            self._publishing.remember_lanes(lanes)
        return published

    @property
    def losses(self) -> int:
        return self._work.losses

    # -- lessees --------------------------------------------------------------------------

    def enrol(self, name: str, *, lease_for: timedelta) -> int:
        return self._work.run(lambda tx: self._lessees.enrol(tx, name, lease_for))

    def renew(self, lessee: int) -> bool:
        return self._work.statement(lambda tx: self._lessees.renew(tx, lessee))

    def resign(self, lessee: int) -> None:
        self._work.run(lambda tx: self._lessees.resign(tx, lessee))

    def reclaim(self, *, max_reclaims: int, limit: int) -> Reclaimed:
        # Before the transaction: while that waits to begin, nobody else may be able to renew.
        asked_at = self._work.statement(self._lessees.now)
        return self._work.run(
            lambda tx: self._lessees.reclaim(tx, asked_at=asked_at, max_reclaims=max_reclaims, limit=limit)
        )

    def next_expiry(self) -> timedelta | None:
        return self._work.statement(self._lessees.next_expiry)

    # -- deliveries -----------------------------------------------------------------------

    def claim(self, queues: Sequence[str], *, limit: int, lessee: int) -> list[Delivery]:
        rows = self._claims.claim(self._work, queues, limit=limit, lessee=lessee)
        expired = [Lease(row.id, row.deliveries) for row in rows if row.expired]
        if expired:
            self.ack(expired)
        return [
            Delivery(Lease(row.id, row.deliveries), row.queue, row.priority, row.body, row.envelope, row.reclaims)
            for row in rows
            if not row.expired
        ]

    def ack(self, leases: Collection[Lease]) -> set[Lease]:
        own = self._work.own
        return self._work.change(lambda tx: self._leases.ack(tx, leases, unhurried=own)) if leases else set()

    def begin(self, leases: Collection[Lease]) -> set[Lease]:
        own = self._work.own
        return self._work.change(lambda tx: self._leases.begin(tx, leases, unhurried=own)) if leases else set()

    def start(self, leases: Collection[Lease]) -> set[Lease]:
        own = self._work.own
        return self._work.change(lambda tx: self._leases.start(tx, leases, unhurried=own)) if leases else set()

    def release(self, leases: Collection[Lease], *, though_started: bool = False) -> set[Lease]:
        return (
            self._work.run(lambda tx: self._leases.release(tx, leases, though_started=though_started)) if leases else set()
        )

    def nack(self, lease: Lease, *, max_reclaims: int) -> Outcome:
        return self._work.run(lambda tx: self._dead.nack(tx, lease, max_reclaims=max_reclaims))

    def bury(self, lease: Lease, reason: Reason) -> bool:
        return self._work.run(lambda tx: self._dead.bury(tx, lease, reason))

    def release_strays(self, lessee: int, held: Collection[Lease]) -> int:
        strays = self._work.statement(lambda tx: self._leases.held_by(tx, lessee)) - set(held)
        return len(self.release(strays))

    # -- messages that somebody owns -------------------------------------------------------

    def settle(self, lease: Lease) -> bool:
        return self._work.run(lambda tx: self._publishing.replace(tx, lease, if_gone=True))

    def is_alive(self, lease: Lease) -> bool:
        return self._work.statement(lambda tx: self._owned.is_alive(tx, lease))

    def withdraw(self, owner: str, tasks: Collection[str]) -> set[str]:
        return self._work.run(lambda tx: self._owned.withdraw(tx, owner, tasks)) if tasks else set()

    def owned(self, owners: Collection[str]) -> set[tuple[str, str]]:
        return self._work.statement(lambda tx: self._owned.tasks(tx, owners)) if owners else set()

    # -- time -----------------------------------------------------------------------------

    def promote(self, *, limit: int, by: str | None = None) -> Promoted:
        promoting = self._waiting.promoting(limit)
        if promoting is None or not self._work.own:
            return self._work.run(lambda tx: self._waiting.promote(tx, limit))
        return self._work.statement(lambda tx: promoting(tx, by))

    def next_due(self) -> timedelta | None:
        return self._work.statement(self._waiting.next_due)

    def expire(self, *, limit: int) -> int:
        return self._work.run(lambda tx: self._waiting.expire(tx, limit))

    @property
    def has_expired(self) -> ColumnElement[bool]:
        """Whether `expire` would find any."""
        return self._waiting.has_expired()

    # -- dead messages --------------------------------------------------------------------

    def claim_reports(self, *, limit: int, lease_for: timedelta) -> list[DeadMessage]:
        # Nearly always there are none.
        if not self._work.statement(self._dead.has_reports):
            return []
        return self._work.run(lambda tx: self._dead.claim_reports(tx, limit=limit, lease_for=lease_for))

    def reported(self, ids: Collection[int]) -> None:
        self._work.run(lambda tx: self._dead.reported(tx, ids))

    def redrive(self, ids: Collection[int]) -> int:
        return self._work.run(lambda tx: self._dead.redrive(tx, ids)) if ids else 0

    def unpark(self, tasks: Collection[str], *, limit: int) -> int:
        # Nearly always there are none.
        if not self._work.statement(lambda tx: self._dead.has_parked(tx, tasks)):
            return 0
        return self._work.run(lambda tx: self._dead.unpark(tx, tasks, limit=limit))

    # -- operating ------------------------------------------------------------------------

    def purge(self, queue: str) -> int:
        return sum(iter(lambda: self._work.run(lambda tx: self._waiting.purge(tx, queue, PURGE_BATCH)), 0))

    def counts(self, queues: Collection[str] | None = None) -> list[QueueCounts]:
        return self._work.statement(lambda tx: self._waiting.counts(tx, queues))
