"""A lease is good while its lessee renews itself, and its fence keeps late holders from the newest delivery."""

from __future__ import annotations

from datetime import timedelta

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.messages import Lease, Outcome, QueueCounts, Reason, Reclaimed
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .conftest import LEASE
from .sending import SECOND, claim, claim_one, names, send

# -- lessees ------------------------------------------------------------------------------


def test_each_lessee_has_a_number_of_its_own(store: SQLMessageStore):
    assert store.enrol("same name", lease_for=LEASE) != store.enrol("same name", lease_for=LEASE)


def test_a_lessee_that_renews_itself_keeps_what_it_holds(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "a")
    held = claim_one(store, lessee)
    for _ in range(5):
        clock.advance(29 * SECOND)
        assert store.renew(lessee)
        assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed()

    assert store.ack([held.lease]) == {held.lease}


def test_a_lessee_whose_lease_ended_may_come_back_if_nobody_took_it_for_dead(
    store: SQLMessageStore, lessee: int, clock: FakeClock
):
    send(store, "a")
    held = claim_one(store, lessee)
    clock.advance(100 * SECOND)

    assert store.renew(lessee)
    assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed()
    assert store.ack([held.lease]) == {held.lease}


def test_a_lessee_that_was_taken_for_dead_is_told(store: SQLMessageStore, lessee: int, clock: FakeClock):
    clock.advance(30 * SECOND)
    store.reclaim(max_reclaims=5, limit=10)

    assert not store.renew(lessee)


def test_a_lessee_nobody_knows_cannot_be_renewed(store: SQLMessageStore, lessee: int):
    assert not store.renew(lessee + 1)


def test_who_resigns_loses_at_once_what_it_holds(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a")
    claim_one(store, lessee)
    store.resign(lessee)

    assert not store.renew(lessee)
    assert store.reclaim(max_reclaims=5, limit=10) == Reclaimed(ready=1)
    assert names(claim(store, other)) == ["a"]


def test_who_resigns_with_nothing_is_gone(store: SQLMessageStore, lessee: int):
    store.resign(lessee)

    assert store.next_expiry() is None
    assert not store.renew(lessee)


def test_it_is_known_when_the_first_lease_ends(store: SQLMessageStore, clock: FakeClock):
    assert store.next_expiry() is None

    store.enrol("long", lease_for=timedelta(minutes=1))
    store.enrol("short", lease_for=10 * SECOND)
    assert store.next_expiry() == 10 * SECOND

    clock.advance(4 * SECOND)
    assert store.next_expiry() == 6 * SECOND
    clock.advance(30 * SECOND)
    assert store.next_expiry() == timedelta(0)

    store.reclaim(max_reclaims=5, limit=10)
    assert store.next_expiry() == 26 * SECOND


def test_a_lease_has_ended_as_long_as_a_dead_lessee_holds_something(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a")
    claim_one(store, lessee)
    store.resign(lessee)

    assert store.next_expiry() == timedelta(0)
    store.reclaim(max_reclaims=5, limit=10)
    assert store.next_expiry() == timedelta(hours=1)


# -- acks ---------------------------------------------------------------------------------


def test_an_acked_message_is_forgotten(store: SQLMessageStore, lessee: int):
    send(store, "a", "b")
    a, b = claim(store, lessee)

    assert store.ack([a.lease]) == {a.lease}
    assert store.counts() == [QueueCounts("q", leased=1)]
    assert store.ack([b.lease]) == {b.lease}
    assert store.counts() == []


def test_many_are_acked_at_once_and_the_good_ones_named(store: SQLMessageStore, lessee: int):
    send(store, *(str(number) for number in range(500)))
    leases = {delivery.lease for delivery in claim(store, lessee, limit=500)}
    wrong = {Lease(lease.message_id, 2) for lease in leases}

    assert store.ack([*wrong, *leases]) == leases
    assert store.ack(leases) == set()


def test_acking_nothing_is_nothing(store: SQLMessageStore):
    assert store.ack([]) == set()
    assert store.start([]) == set()
    assert store.release([]) == set()


def test_a_late_ack_leaves_the_new_holder_alone(store: SQLMessageStore, lessee: int, other: int, clock: FakeClock):
    """The fence: only the newest delivery of a message can finish it."""
    send(store, "a")
    late = claim_one(store, lessee)
    clock.advance(31 * SECOND)
    store.reclaim(max_reclaims=5, limit=10)
    newest = claim_one(store, other)

    assert store.ack([late.lease]) == set()
    assert store.ack([newest.lease]) == {newest.lease}


def test_a_late_ack_counts_while_nobody_has_claimed_the_message_again(
    store: SQLMessageStore, lessee: int, other: int, clock: FakeClock
):
    send(store, "a")
    late = claim_one(store, lessee)
    clock.advance(31 * SECOND)
    store.reclaim(max_reclaims=5, limit=10)

    assert store.ack([late.lease]) == {late.lease}
    assert claim(store, other) == []


def test_a_late_holder_can_change_nothing_else(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a")
    late = claim_one(store, lessee).lease
    store.release([late])
    newest = claim_one(store, other).lease

    assert store.start([late]) == set()
    assert store.release([late]) == set()
    assert store.nack(late, max_reclaims=5) is Outcome.LOST
    assert not store.bury(late, Reason.REJECTED)
    assert store.counts() == [QueueCounts("q", leased=1)]
    assert store.ack([newest]) == {newest}


def test_a_message_that_is_ready_is_nobodys_to_change(store: SQLMessageStore, lessee: int):
    send(store, "a")
    late = claim_one(store, lessee).lease
    store.release([late])

    assert store.start([late]) == set()
    assert store.release([late]) == set()
    assert store.nack(late, max_reclaims=5) is Outcome.LOST
    assert not store.bury(late, Reason.REJECTED)
    assert store.counts() == [QueueCounts("q", ready=1)]


# -- started ------------------------------------------------------------------------------


def test_a_started_message_is_leased_until_it_is_acked(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a", "b")
    a, b = claim(store, lessee)

    assert store.start([a.lease]) == {a.lease}
    assert store.counts() == [QueueCounts("q", leased=1, started=1)]
    assert claim(store, other) == []
    assert store.ack([a.lease, b.lease]) == {a.lease, b.lease}
    assert store.counts() == []


def test_starting_again_changes_nothing(store: SQLMessageStore, lessee: int):
    send(store, "a")
    lease = claim_one(store, lessee).lease

    assert store.start([lease]) == {lease}
    assert store.start([lease]) == {lease}
    assert store.counts() == [QueueCounts("q", started=1)]


def test_a_started_message_is_never_given_back(store: SQLMessageStore, lessee: int):
    send(store, "a")
    lease = claim_one(store, lessee).lease
    store.start([lease])

    assert store.release([lease]) == set()
    assert store.nack(lease, max_reclaims=5) is Outcome.LOST
    assert store.release_strays(lessee, held=[]) == 0
    assert store.counts() == [QueueCounts("q", started=1)]


# -- strays -------------------------------------------------------------------------------


def test_what_a_lessee_holds_without_knowing_is_released(store: SQLMessageStore, lessee: int, other: int):
    send(store, "known", "stray", "another stray", "of someone else")
    known, *_ = claim(store, lessee, limit=3)
    claim(store, other)

    assert store.release_strays(lessee, held=[known.lease]) == 2
    assert names(claim(store, lessee)) == ["stray", "another stray"]


def test_without_strays_nothing_is_released(store: SQLMessageStore, lessee: int):
    send(store, "a", "b")
    held = [delivery.lease for delivery in claim(store, lessee)]

    assert store.release_strays(lessee, held=held) == 0
    assert store.counts() == [QueueCounts("q", leased=2)]


def test_a_started_message_is_given_back_only_if_its_task_has_not_begun(store: SQLMessageStore, lessee: int):
    send(store, "a")
    lease = claim_one(store, lessee).lease
    store.start([lease])

    assert store.release([lease]) == set()
    assert store.release([lease], though_started=True) == {lease}
    again = claim_one(store, lessee).lease
    assert store.release([again]) == {again}
