"""Messages that come back: released unharmed, or put back after a failure."""

from __future__ import annotations

import pytest

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.messages import Outcome, QueueCounts, Reason
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .sending import SECOND, claim, claim_one, names, send


def test_a_released_message_is_ready_at_once_and_nothing_is_counted(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a")
    first = claim_one(store, lessee)

    assert store.release([first.lease]) == {first.lease}
    again = claim_one(store, other)
    assert again.redelivered
    assert again.lease.delivery == 2
    assert again.reclaims == 0


def test_the_delivery_number_rises_with_each_claim(store: SQLMessageStore, lessee: int):
    send(store, "a")
    numbers = []
    for _ in range(4):
        delivery = claim_one(store, lessee)
        numbers.append(delivery.lease.delivery)
        store.release([delivery.lease])

    assert numbers == [1, 2, 3, 4]


def test_released_messages_come_before_those_that_never_left(store: SQLMessageStore, lessee: int):
    send(store, *"abcdef")
    held = claim(store, lessee, limit=4)
    store.release([delivery.lease for delivery in held[1:]])

    assert names(claim(store, lessee)) == ["b", "c", "d", "e", "f"]


def test_what_was_released_first_is_claimed_first(store: SQLMessageStore, lessee: int):
    send(store, *"abc")
    a, b, _ = claim(store, lessee)
    store.release([b.lease])
    store.release([a.lease])

    assert names(claim(store, lessee, limit=1)) == ["b"]
    assert names(claim(store, lessee, limit=1)) == ["a"]


def test_a_released_message_keeps_its_priority(store: SQLMessageStore, lessee: int):
    send(store, "low", "lower")
    send(store, "high", priority=5)
    low = claim(store, lessee, limit=2)[1]
    store.release([low.lease])
    send(store, "higher", priority=5)

    assert names(claim(store, lessee)) == ["higher", "low", "lower"]


def test_the_good_leases_of_a_release_are_named(store: SQLMessageStore, lessee: int):
    send(store, *"abc")
    a, b, c = (delivery.lease for delivery in claim(store, lessee))
    store.ack([a])
    store.start([b])

    assert store.release([a, b, c]) == {c}


def test_a_message_that_was_put_back_is_ready_at_once(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a")
    first = claim_one(store, lessee)

    assert store.nack(first.lease, max_reclaims=5) is Outcome.READY
    again = claim_one(store, other)
    assert again.redelivered
    assert again.reclaims == 1


def test_a_message_that_was_put_back_lets_others_go_first(store: SQLMessageStore, lessee: int):
    send(store, *"abc")
    a = claim_one(store, lessee)
    store.nack(a.lease, max_reclaims=5)

    assert names(claim(store, lessee)) == ["b", "c", "a"]


@pytest.mark.parametrize("max_reclaims", [0, 1, 3])
def test_a_message_put_back_too_often_is_dead(store: SQLMessageStore, lessee: int, max_reclaims: int):
    send(store, "a", task_id="id")
    for _ in range(max_reclaims):
        assert store.nack(claim_one(store, lessee).lease, max_reclaims=max_reclaims) is Outcome.READY
    assert store.nack(claim_one(store, lessee).lease, max_reclaims=max_reclaims) is Outcome.DEAD

    assert store.counts() == [QueueCounts("q", dead=1)]
    (dead,) = store.claim_reports(limit=10, lease_for=SECOND)
    assert dead.reason is Reason.RECLAIMS
    assert dead.reclaims == max_reclaims + 1
    assert dead.delivery == max_reclaims + 1
    assert dead.holders == ("worker",) * (max_reclaims + 1)


def test_releases_do_not_count_towards_the_bound(store: SQLMessageStore, lessee: int):
    send(store, "a")
    for _ in range(10):
        store.release([claim_one(store, lessee).lease])

    assert store.nack(claim_one(store, lessee).lease, max_reclaims=1) is Outcome.READY


def test_a_message_that_is_gone_cannot_be_put_back(store: SQLMessageStore, lessee: int):
    send(store, "a")
    lease = claim_one(store, lessee).lease
    store.ack([lease])

    assert store.nack(lease, max_reclaims=5) is Outcome.LOST


def test_a_released_message_still_expires(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "a", expires_in=10 * SECOND)
    lease = claim_one(store, lessee).lease
    clock.advance(11 * SECOND)
    store.release([lease])

    assert claim(store, lessee) == []
    assert store.counts() == []
