"""Delayed messages wait in the database until they are due; expired ones are swept."""

from __future__ import annotations

from datetime import timedelta

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.messages import Promoted, QueueCounts
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .sending import SECOND, after, claim, names, send


def test_a_delayed_message_is_not_claimed(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "a", due_at=after(clock, SECOND))

    assert claim(store, lessee) == []
    assert store.counts() == [QueueCounts("q", delayed=1)]


def test_a_delayed_message_is_promoted_when_it_is_due(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "a", due_at=after(clock, SECOND))
    assert store.promote(limit=10).ready == 0

    clock.advance(SECOND)
    assert store.promote(limit=10).ready == 1
    assert store.promote(limit=10).ready == 0
    assert names(claim(store, lessee)) == ["a"]


def test_a_message_due_in_the_past_is_ready_at_once(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "past", due_at=after(clock, -SECOND))
    send(store, "now", due_at=clock.now())

    assert names(claim(store, lessee)) == ["past", "now"]


def test_promoted_messages_join_the_end_of_their_lane_in_the_order_in_which_they_are_due(
    store: SQLMessageStore, lessee: int, clock: FakeClock
):
    send(store, "last", due_at=after(clock, 3 * SECOND))
    send(store, "first", due_at=after(clock, 1 * SECOND))
    send(store, "second", due_at=after(clock, 2 * SECOND))
    send(store, "urgent", due_at=after(clock, 3 * SECOND), priority=1)
    send(store, "waiting")
    clock.advance(3 * SECOND)
    store.promote(limit=10)

    assert names(claim(store, lessee)) == ["urgent", "waiting", "first", "second", "last"]


def test_one_promotion_takes_no_more_than_its_limit_and_the_earliest_first(
    store: SQLMessageStore, lessee: int, clock: FakeClock
):
    for name, seconds in [("c", 3), ("a", 1), ("b", 2)]:
        send(store, name, due_at=after(clock, seconds * SECOND))
    clock.advance(10 * SECOND)

    assert store.promote(limit=2).ready == 2
    assert names(claim(store, lessee)) == ["a", "b"]
    assert store.promote(limit=2).ready == 1


def test_it_is_known_when_the_next_message_is_due(store: SQLMessageStore, clock: FakeClock):
    assert store.next_due() is None

    send(store, "later", due_at=after(clock, 9 * SECOND))
    send(store, "sooner", queue="other", due_at=after(clock, 4 * SECOND))
    assert store.next_due() == 4 * SECOND

    clock.advance(timedelta(seconds=3.5))
    assert store.next_due() == timedelta(seconds=0.5)
    clock.advance(5 * SECOND)
    assert store.next_due() == timedelta(0)

    store.promote(limit=10)
    assert store.next_due() == timedelta(seconds=0.5)


def test_a_promotion_tells_in_which_queues_and_when_the_next_message_is_due(store: SQLMessageStore, clock: FakeClock):
    assert store.promote(limit=10) == Promoted()

    for name, queue, seconds in [("a", "q", 1), ("b", "other", 2), ("c", "q", 2), ("d", "another", 7)]:
        send(store, name, queue=queue, due_at=after(clock, seconds * SECOND))
    assert store.promote(limit=10) == Promoted(due_in=SECOND)

    clock.advance(3 * SECOND)
    assert store.promote(limit=1) == Promoted(1, frozenset({"q"}), timedelta(0))
    assert store.promote(limit=10) == Promoted(2, frozenset({"q", "other"}), 4 * SECOND)
    assert store.promote(limit=10) == Promoted(due_in=4 * SECOND)

    clock.advance(4 * SECOND)
    assert store.promote(limit=10) == Promoted(1, frozenset({"another"}), None)


def test_a_delayed_message_may_expire_before_it_is_due(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "a", due_at=after(clock, 10 * SECOND), expires_in=5 * SECOND)
    clock.advance(10 * SECOND)
    store.promote(limit=10)

    assert claim(store, lessee) == []
    assert store.counts() == []


def test_expired_messages_that_nobody_holds_are_swept(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "held", expires_in=SECOND)
    claim(store, lessee)
    send(store, "ready", "ready too", expires_in=SECOND)
    send(store, "delayed", expires_in=SECOND, due_at=after(clock, 9 * SECOND))
    send(store, "lasting")
    assert store.expire(limit=10) == 0

    clock.advance(SECOND)
    assert store.expire(limit=2) == 2
    assert store.expire(limit=2) == 1
    assert store.expire(limit=2) == 0
    assert store.counts() == [QueueCounts("q", ready=1, leased=1)]
