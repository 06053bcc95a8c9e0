"""The outbox: messages in line for another broker, and the one relay whose turn it is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from threading import Barrier

import pytest

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.messages import NewMessage, Reason
from kombu_sqlqueue.outbox_store import OUTBOX
from kombu_sqlqueue.sql.admin import SQLAdmin
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.outbox import SQLOutbox
from kombu_sqlqueue.sql.waiters import SQLWaiters
from kombu_sqlqueue.topics import RELAY

from ..databases import requires

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
NO_TIME = timedelta(0)

Enrol = Callable[[], int]


@pytest.fixture
def outbox(database: Database) -> SQLOutbox:
    return SQLOutbox(database)


@pytest.fixture
def relay(store: SQLMessageStore) -> Enrol:
    """Makes relays, each with a lease of 30 seconds."""
    return lambda: store.enrol("relay", lease_for=LEASE)


def put(store: SQLMessageStore, *names: str) -> None:
    for name in names:
        store.publish([NewMessage(OUTBOX, name.encode(), "{}", task_id=name, task="some.task")])


def read(outbox: SQLOutbox, lessee: int, limit: int = 100, spare: timedelta = NO_TIME) -> list[str] | None:
    messages = outbox.read(lessee, limit=limit, spare=spare)
    return None if messages is None else [message.body.decode() for message in messages]


def test_one_relay_at_a_time_has_the_turn(outbox: SQLOutbox, relay: Enrol):
    first, second = relay(), relay()

    assert outbox.take_turn(first)
    assert not outbox.take_turn(second)
    assert outbox.take_turn(first)


def test_of_relays_that_begin_together_one_gets_the_turn(outbox: SQLOutbox, relay: Enrol):
    for _ in range(10):
        lessees = [relay() for _ in range(4)]
        barrier = Barrier(4)

        def take(lessee: int, barrier: Barrier = barrier) -> bool:
            barrier.wait()
            return outbox.take_turn(lessee)

        with ThreadPoolExecutor(4) as pool:
            turns = list(pool.map(take, lessees))
        assert sum(turns) == 1
        outbox.leave_turn(lessees[turns.index(True)])


def test_the_turn_passes_on_when_the_lease_ends(outbox: SQLOutbox, relay: Enrol, clock: FakeClock, store: SQLMessageStore):
    silent, other = relay(), relay()
    outbox.take_turn(silent)
    clock.advance(LEASE - SECOND)
    assert store.renew(other)
    assert not outbox.take_turn(other)
    clock.advance(SECOND)

    assert outbox.take_turn(other)
    assert not outbox.take_turn(silent), "it was only asleep"


def test_a_relay_that_renews_itself_keeps_the_turn(
    outbox: SQLOutbox, relay: Enrol, clock: FakeClock, store: SQLMessageStore
):
    first, second = relay(), relay()
    outbox.take_turn(first)
    for _ in range(4):
        clock.advance(LEASE / 2)
        store.renew(first)
        store.renew(second)

    assert not outbox.take_turn(second)


def test_a_turn_that_is_left_is_free_at_once(outbox: SQLOutbox, relay: Enrol):
    first, second = relay(), relay()
    outbox.take_turn(first)
    outbox.leave_turn(second)
    assert not outbox.take_turn(second), "it had nothing to leave"
    outbox.leave_turn(first)

    assert outbox.take_turn(second)


@requires(Capability.LISTEN_NOTIFY)
def test_who_waits_for_the_turn_is_told_when_it_is_left(outbox: SQLOutbox, relay: Enrol, database: Database):
    outbox.take_turn(first := relay())
    SQLWaiters(database).arm("me", [RELAY], armed_for=LEASE)
    waker = database.waker()
    assert waker is not None
    waker.wait(0.1)
    outbox.leave_turn(first)
    heard = waker.wait(10)
    waker.close()

    assert heard is not None
    assert list(heard) == [RELAY]


def test_a_relay_taken_for_dead_does_not_take_the_turn(
    outbox: SQLOutbox, relay: Enrol, clock: FakeClock, store: SQLMessageStore
):
    dead = relay()
    clock.advance(LEASE)
    store.reclaim(max_reclaims=5, limit=10)

    assert not outbox.take_turn(dead)


def test_only_who_has_the_turn_reads(outbox: SQLOutbox, relay: Enrol, store: SQLMessageStore):
    first, second = relay(), relay()
    put(store, "a")
    assert read(outbox, first) is None
    outbox.take_turn(first)

    assert read(outbox, first) == ["a"]
    assert read(outbox, second) is None


def test_nothing_is_read_when_little_of_the_lease_is_left(
    outbox: SQLOutbox, relay: Enrol, clock: FakeClock, store: SQLMessageStore
):
    lessee = relay()
    outbox.take_turn(lessee)
    put(store, "a")
    clock.advance(LEASE - 10 * SECOND)

    assert read(outbox, lessee, spare=9 * SECOND) == ["a"]
    assert read(outbox, lessee, spare=10 * SECOND) is None


def test_messages_come_in_the_order_in_which_they_were_stored(outbox: SQLOutbox, relay: Enrol, store: SQLMessageStore):
    lessee = relay()
    outbox.take_turn(lessee)
    store.publish([NewMessage(OUTBOX, name, "{}") for name in (b"1", b"2", b"3")])
    put(store, "4", "5")

    assert read(outbox, lessee) == ["1", "2", "3", "4", "5"]
    assert read(outbox, lessee, limit=2) == ["1", "2"]


def test_what_is_read_stays_until_it_is_forgotten(outbox: SQLOutbox, relay: Enrol, store: SQLMessageStore):
    """So a relay that dies leaves everything in its place."""
    lessee = relay()
    outbox.take_turn(lessee)
    put(store, "1", "2", "3")
    first, _, third = outbox.read(lessee, limit=3, spare=NO_TIME)
    outbox.leave_turn(lessee)
    outbox.take_turn(other := relay())
    assert read(outbox, other) == ["1", "2", "3"]

    assert outbox.forget([first.id, third.id]) == 2
    assert read(outbox, other) == ["2"]
    assert outbox.forget([first.id]) == 0


def test_messages_of_other_queues_are_not_read(outbox: SQLOutbox, relay: Enrol, store: SQLMessageStore):
    lessee = relay()
    outbox.take_turn(lessee)
    store.publish([NewMessage("celery", b"x", "{}")])

    assert read(outbox, lessee) == []


@requires(Capability.LATE_COMMITS)
def test_what_was_stored_first_comes_first_though_it_was_committed_late(
    outbox: SQLOutbox, relay: Enrol, store: SQLMessageStore, database: Database
):
    """However far later ones have been passed on, and also before those that its sender stored afterwards."""
    lessee = relay()
    outbox.take_turn(lessee)
    with database.engine.connect() as slow, slow.begin() as transaction:
        put(store.within(slow), "late")
        for _ in range(5):
            store.publish([NewMessage(OUTBOX, b"x", "{}") for _ in range(300)])
            outbox.forget([message.id for message in outbox.read(lessee, limit=300, spare=NO_TIME)])
        transaction.commit()
    put(store, "after")

    assert read(outbox, lessee) == ["late", "after"]


def test_a_buried_message_is_dead_with_its_reason(
    outbox: SQLOutbox, relay: Enrol, store: SQLMessageStore, database: Database
):
    lessee = relay()
    outbox.take_turn(lessee)
    put(store, "bad", "good")
    bad, _ = outbox.read(lessee, limit=2, spare=NO_TIME)
    assert outbox.bury(bad.id, Reason.REFUSED)
    assert not outbox.bury(bad.id, Reason.REFUSED)

    (dead,) = SQLAdmin(database).dead(limit=10)
    assert (dead.queue, dead.task_id, dead.task, dead.reason) == (OUTBOX, "bad", "some.task", Reason.REFUSED)
    assert store.claim_reports(limit=10, lease_for=LEASE) == [], "nobody lost it"
    assert read(outbox, lessee) == ["good"]


def test_a_redriven_message_is_in_line_again(outbox: SQLOutbox, relay: Enrol, store: SQLMessageStore):
    lessee = relay()
    outbox.take_turn(lessee)
    put(store, "bad", "good")
    bad, _ = outbox.read(lessee, limit=2, spare=NO_TIME)
    outbox.bury(bad.id, Reason.REFUSED)
    store.redrive([bad.id])

    assert read(outbox, lessee) == ["good", "bad"]


def test_who_waits_for_the_turn_only_looks(
    outbox: SQLOutbox, relay: Enrol, executed: Callable[[], AbstractContextManager[list[tuple[str, object]]]]
):
    """One statement that writes nothing, twice a second: nobody is in the way of those who send."""
    first, second = relay(), relay()
    outbox.take_turn(first)
    with executed() as statements:
        outbox.take_turn(second)

    assert [text.split()[0] for text, _ in statements] == ["SELECT"]
