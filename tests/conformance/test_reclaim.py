"""What the dead leave behind is taken back, once, and counted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.messages import QueueCounts, Reason, Reclaimed
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .sending import SECOND, claim, claim_one, message, names, send


def test_nothing_is_taken_from_the_living(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "a")
    claim(store, lessee)
    clock.advance(timedelta(seconds=29.999999))

    assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed()


def test_what_the_dead_held_is_ready_again(store: SQLMessageStore, lessee: int, other: int, clock: FakeClock):
    send(store, *"abcd")
    claim(store, lessee, limit=3)
    clock.advance(30 * SECOND)

    assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed(ready=3)
    again = claim(store, other)
    assert names(again) == ["a", "b", "c", "d"]
    assert [delivery.reclaims for delivery in again] == [1, 1, 1, 0]
    assert [delivery.redelivered for delivery in again] == [True, True, True, False]


def test_a_lease_that_ends_while_the_reclaim_waits_for_its_turn_is_spared(
    store: SQLMessageStore, database: Database, lessee: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    """Whoever kept us waiting, with a lock on everything, kept the holder from renewing, too."""
    send(store, "a")
    held = claim_one(store, lessee)
    begin = database._transaction

    def begin_late(*args, **kwargs):
        clock.advance(60 * SECOND)
        return begin(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(database, "_transaction", begin_late)
        assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed(ready=0, dead=0)
    assert store.renew(lessee)
    assert store.ack([held.lease]) == {held.lease}


def test_a_started_message_dies_with_its_worker(store: SQLMessageStore, lessee: int, clock: FakeClock):
    store.publish([message("a", task_id="id", task="name")])
    store.start([claim_one(store, lessee).lease])
    clock.advance(30 * SECOND)

    assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed(dead=1)
    (dead,) = store.claim_reports(limit=10, lease_for=SECOND)
    assert dead.reason is Reason.WORKER_LOST
    assert dead.holders == ("worker",)
    assert (dead.task_id, dead.task, dead.queue, dead.body, dead.delivery) == ("id", "name", "q", b"a", 1)
    assert dead.died_at == clock.now()


@pytest.mark.parametrize("max_reclaims", [0, 2])
def test_a_message_lost_too_often_dies(store: SQLMessageStore, clock: FakeClock, max_reclaims: int):
    send(store, "a", task_id="id")
    for number in range(max_reclaims + 1):
        claim_one(store, store.enrol(f"worker {number}", lease_for=SECOND))
        clock.advance(SECOND)
        last = number == max_reclaims
        assert store.reclaim(max_reclaims=max_reclaims, limit=10) == Reclaimed(ready=not last, dead=last)

    (dead,) = store.claim_reports(limit=10, lease_for=SECOND)
    assert dead.reason is Reason.RECLAIMS
    assert dead.reclaims == max_reclaims + 1
    assert dead.holders == tuple(f"worker {number}" for number in range(max_reclaims + 1))


def test_each_message_has_its_own_fate(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "worn out", "begun", "fresh")
    worn_out = claim_one(store, lessee)
    store.nack(worn_out.lease, max_reclaims=1)
    begun, _, worn_out = claim(store, lessee)
    store.start([begun.lease])
    store.begin([worn_out.lease])
    clock.advance(30 * SECOND)

    assert store.reclaim(max_reclaims=1, limit=10) == Reclaimed(ready=1, dead=2)
    assert store.counts() == [QueueCounts("q", ready=1, dead=2)]


def test_who_waits_behind_a_begun_message_is_innocent_of_its_holders_death(
    store: SQLMessageStore, lessee: int, other: int, clock: FakeClock
):
    """A poison task takes nobody with it: only what ran pays for the loss."""
    send(store, "poison", "behind")
    poison, _ = claim(store, lessee)
    assert store.begin([poison.lease]) == {poison.lease}
    clock.advance(30 * SECOND)

    assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed(ready=2)
    assert {delivery.body: delivery.reclaims for delivery in claim(store, other)} == {b"poison": 1, b"behind": 0}


def test_one_pass_takes_back_no_more_than_its_limit(store: SQLMessageStore, lessee: int, other: int, clock: FakeClock):
    send(store, *"abcde")
    claim(store, lessee)
    clock.advance(30 * SECOND)

    assert store.reclaim(max_reclaims=5, limit=2) == Reclaimed(ready=2)
    assert store.next_expiry() == timedelta(0)
    assert store.reclaim(max_reclaims=5, limit=2) == Reclaimed(ready=2)
    assert store.reclaim(max_reclaims=5, limit=2) == Reclaimed(ready=1)
    assert store.reclaim(max_reclaims=5, limit=2) == Reclaimed()
    assert names(claim(store, other)) == ["a", "b", "c", "d", "e"]


def test_what_a_sleeper_claims_after_it_was_taken_for_dead_is_taken_back_too(
    store: SQLMessageStore, database: Database, lessee: int, other: int, clock: FakeClock
):
    """A claim looks whether its lessee lives, but does not hold on to it: one may slip through."""
    send(store, "a")
    claim_one(store, other)
    clock.advance(30 * SECOND)
    store.reclaim(max_reclaims=5, limit=10)
    m = database.tables.message
    database.run(lambda tx: tx.execute(update(m).values(lessee=lessee)))

    assert store.next_expiry() == timedelta(0)
    assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed(ready=1)


def test_the_dead_are_forgotten_when_nobody_can_be_asleep_any_more(
    store: SQLMessageStore, database: Database, lessee: int, clock: FakeClock
):
    lessees = select(func.count()).select_from(database.tables.lessee)
    clock.advance(30 * SECOND)
    store.reclaim(max_reclaims=5, limit=10)
    clock.advance(timedelta(minutes=59))
    store.reclaim(max_reclaims=5, limit=10)
    assert database.run(lambda tx: tx.scalar(lessees)) == 1

    clock.advance(timedelta(minutes=2))
    store.reclaim(max_reclaims=5, limit=10)
    assert database.run(lambda tx: tx.scalar(lessees)) == 0


def test_after_a_start_of_the_database_each_lessee_has_a_whole_lease_to_come_back(database_options, database: Database):
    """Nobody could renew while it was down. The server here has started less than a century ago."""
    unmoved = Database(database_options)
    store = SQLMessageStore(unmoved)
    century = timedelta(days=36_500)
    lessee = store.enrol("worker", lease_for=century)
    send(store, "a")
    claim_one(store, lessee)
    unmoved.run(lambda tx: tx.execute(update(unmoved.tables.lessee).values(expires_at=1)))

    grace = unmoved.started_at() is not None
    left = store.next_expiry()
    assert left is not None
    assert (left > timedelta(0)) == grace
    assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed(ready=not grace)
    unmoved.dispose()
