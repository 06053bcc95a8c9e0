"""One look tells which kinds of things have expired, and only those are gone through."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.results import NewResult
from kombu_sqlqueue.revoking import Revocation
from kombu_sqlqueue.routing import Queue, QueueArguments
from kombu_sqlqueue.sql.chords import SQLChordStore
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.pruning import Kind, Pruning
from kombu_sqlqueue.sql.results import SQLResultStore
from kombu_sqlqueue.sql.revocations import SQLRevocationStore
from kombu_sqlqueue.sql.routing import SQLRoutingStore
from kombu_sqlqueue.sql.waiters import SQLWaiters

from ..statements import Executed
from .sending import SECOND, send

HOUR = timedelta(hours=1)
LONG = timedelta(days=60)


def a_message(database: Database, store: SQLMessageStore) -> Kind:
    send(store, "a", expires_in=SECOND)
    return store.has_expired, lambda: store.expire(limit=10)


def a_result(database: Database, store: SQLMessageStore) -> Kind:
    results = SQLResultStore(database)
    results.store(NewResult("t", "SUCCESS", b"", expires_in=HOUR))
    return results.has_expired, lambda: results.prune(limit=10)


def a_group(database: Database, store: SQLMessageStore) -> Kind:
    results = SQLResultStore(database)
    results.save_group("g", b"", expires_in=HOUR)
    return results.has_expired, lambda: results.prune(limit=10)


def a_chord(database: Database, store: SQLMessageStore) -> Kind:
    results = SQLResultStore(database)
    SQLChordStore(database).set_size("g", 2, expires_in=HOUR)
    return results.has_expired, lambda: results.prune(limit=10)


def an_unused_queue(database: Database, store: SQLMessageStore) -> Kind:
    routing = SQLRoutingStore(database)
    routing.declare_queue(Queue("brief", arguments=QueueArguments(expires_for=SECOND)))
    return routing.has_unused, lambda: routing.sweep(limit=10)


def an_orphaned_queue(database: Database, store: SQLMessageStore) -> Kind:
    return _consumed(database, store, Queue("reply", auto_delete=True))


def a_lost_consumer(database: Database, store: SQLMessageStore) -> Kind:
    return _consumed(database, store, Queue("lasting"))


def _consumed(database: Database, store: SQLMessageStore, queue: Queue) -> Kind:
    """By a process that is lost as soon as somebody looks for such."""
    routing, lessee = SQLRoutingStore(database), store.enrol("worker", lease_for=HOUR)
    routing.declare_queue(queue)
    routing.consume(queue.name, lessee)
    return routing.has_unused, lambda: routing.sweep(limit=10)


def a_revocation(database: Database, store: SQLMessageStore) -> Kind:
    revocations = SQLRevocationStore(database)
    revocations.revoke([Revocation("id")])
    return revocations.has_expired, lambda: revocations.prune(limit=10)


def a_waiter(database: Database, store: SQLMessageStore) -> Kind:
    waiters = SQLWaiters(database)
    waiters.arm("me", ["queue:q"], armed_for=SECOND)
    return waiters.has_expired, waiters.prune


KINDS = [
    a_message,
    a_result,
    a_group,
    a_chord,
    an_unused_queue,
    an_orphaned_queue,
    a_lost_consumer,
    a_revocation,
    a_waiter,
]


@pytest.mark.parametrize("make", KINDS)
def test_what_has_expired_is_found_and_deleted(
    database: Database, store: SQLMessageStore, clock: FakeClock, make: Callable[[Database, SQLMessageStore], Kind]
):
    expired, prune = make(database, store)
    pruned = []
    pruning = Pruning(database, [(expired, lambda: pruned.append(prune()))])
    pruning.run()
    assert not pruned

    clock.advance(LONG)
    store.reclaim(max_reclaims=5, limit=10)
    pruning.run()
    assert len(pruned) == 1
    pruning.run()
    assert len(pruned) == 1


def test_while_nothing_has_expired_one_statement_is_all(
    database: Database, store: SQLMessageStore, executed: Callable[[], AbstractContextManager[Executed]]
):
    pruning = Pruning(database, [make(database, store) for make in KINDS])
    with executed() as statements:
        pruning.run()

    assert len(statements) == 1
