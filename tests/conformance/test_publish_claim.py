"""What is published is claimed: whole, once, in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from sqlalchemy.exc import DBAPIError

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.errors import StoreUnavailableError
from kombu_sqlqueue.messages import Delivery, Lease, NewMessage, QueueCounts
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..statements import Executed
from .sending import SECOND, after, claim, claim_one, message, names, send


def test_a_message_arrives_as_it_was_sent(store: SQLMessageStore, lessee: int):
    body = bytes(range(256))
    store.publish([NewMessage("ümläut 漢字", body, '{"a": "ü\\u0000"}', priority=9, task_id="id", task="name")])

    (delivery,) = claim(store, lessee, "ümläut 漢字")

    assert delivery == Delivery(
        Lease(delivery.lease.message_id, 1), "ümläut 漢字", priority=9, body=body, envelope='{"a": "ü\\u0000"}', reclaims=0
    )
    assert not delivery.redelivered


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_a_body_may_have_any_size(store: SQLMessageStore, lessee: int, size: int):
    store.publish([NewMessage("q", b"\xff" * size, "{}")])

    assert claim_one(store, lessee).body == b"\xff" * size


def test_messages_published_together_may_differ_in_all_they_have(store: SQLMessageStore, lessee: int, clock: FakeClock):
    store.publish(
        [
            message("a", queue="one", task_id="id"),
            message("b", queue="two", priority=3),
            message("c", queue="two", due_at=after(clock, SECOND)),
            message("d", queue="one", expires_in=SECOND),
        ]
    )

    assert names(claim(store, lessee, "one", "two")) == ["b", "a", "d"]


def test_all_are_stored_or_none(store: SQLMessageStore, lessee: int):
    with pytest.raises(DBAPIError):
        store.publish([message("a"), message("b", priority=None), message("c")])

    assert store.counts() == []


def test_publishing_nothing_is_nothing(store: SQLMessageStore):
    assert store.publish([])
    assert store.counts() == []


def test_a_message_is_claimed_once(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a")

    assert names(claim(store, lessee)) == ["a"]
    assert claim(store, lessee) == []
    assert claim(store, other) == []


def test_first_in_first_out(store: SQLMessageStore, lessee: int):
    send(store, "a", "b")
    send(store, "c")
    send(store, "d", "e")

    assert names(claim(store, lessee, limit=3)) == ["a", "b", "c"]
    assert names(claim(store, lessee, limit=3)) == ["d", "e"]


def test_a_thousand_messages_keep_their_order_and_are_few_statements(
    store: SQLMessageStore, lessee: int, executed: Callable[[], AbstractContextManager[Executed]]
):
    sent = [f"{number}" for number in range(1000)]
    with executed() as statements:
        send(store, *sent)

    assert len([statement for statement, _ in statements if "INSERT INTO" in statement and "message" in statement]) == 1
    assert names(claim(store, lessee, limit=1000)) == sent


def test_a_claim_takes_no_more_than_its_limit(store: SQLMessageStore, lessee: int):
    send(store, *"abcdef")

    assert len(claim(store, lessee, limit=4)) == 4
    assert len(claim(store, lessee, limit=1)) == 1


@pytest.mark.parametrize("limit", [0, -1])
def test_without_room_nothing_is_claimed(store: SQLMessageStore, lessee: int, limit: int):
    send(store, "a")

    assert claim(store, lessee, limit=limit) == []


def test_only_the_queues_asked_for_are_claimed(store: SQLMessageStore, lessee: int):
    send(store, "a", queue="asked")
    send(store, "b", queue="not asked")

    assert store.claim([], limit=10, lessee=lessee) == []
    assert names(claim(store, lessee, "asked", "unknown", "asked")) == ["a"]


def test_an_expired_message_is_deleted_instead_of_delivered(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "brief", expires_in=10 * SECOND)
    send(store, "lasting")
    clock.advance(10 * SECOND)

    assert names(claim(store, lessee)) == ["lasting"]
    assert store.counts() == [QueueCounts("q", leased=1)]


def test_a_message_is_good_until_it_expires(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "a", expires_in=10 * SECOND)
    clock.advance(timedelta(seconds=9.999999))

    assert names(claim(store, lessee)) == ["a"]


def test_expired_messages_take_no_room_from_others(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, *"abcdefgh", expires_in=SECOND)
    send(store, "good", "better")
    clock.advance(SECOND)

    assert names(claim(store, lessee, limit=2)) == ["good", "better"]


def test_who_is_taken_for_dead_is_given_nothing(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "a")
    clock.advance(31 * SECOND)
    store.reclaim(max_reclaims=5, limit=10)

    assert claim(store, lessee) == []


def test_who_has_not_enrolled_is_given_nothing(store: SQLMessageStore, lessee: int):
    send(store, "a")

    assert claim(store, lessee + 1) == []
    assert names(claim(store, lessee)) == ["a"]


# -- replacing ----------------------------------------------------------------------------


def test_a_retry_replaces_the_message_it_came_from(store: SQLMessageStore, lessee: int):
    send(store, "first try")
    first = claim_one(store, lessee)

    assert store.publish([message("second try")], replaces=first.lease)
    assert store.counts() == [QueueCounts("q", ready=1)]
    assert store.ack([first.lease]) == set()


def test_a_retry_of_a_lost_delivery_leaves_it_to_the_newest_one(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a")
    lost = claim_one(store, lessee)
    store.release([lost.lease])
    newest = claim_one(store, other)

    assert not store.publish([message("a again")], replaces=lost.lease)
    assert store.counts() == [QueueCounts("q", leased=1)]
    assert store.ack([newest.lease]) == {newest.lease}


def test_a_retry_replaces_a_message_that_was_taken_back_but_not_claimed_again(store: SQLMessageStore, lessee: int):
    send(store, "a")
    lost = claim_one(store, lessee)
    store.release([lost.lease])

    assert store.publish([message("a again")], replaces=lost.lease)
    assert names(claim(store, lessee)) == ["a again"]


def test_a_retry_of_a_lost_delivery_is_not_stored_after_the_newest_one_has_ended(
    store: SQLMessageStore, lessee: int, other: int
):
    send(store, "a")
    lost = claim_one(store, lessee)
    store.release([lost.lease])
    store.ack([claim_one(store, other).lease])

    assert not store.publish([message("a again")], replaces=lost.lease)
    assert store.counts() == []


def test_a_retry_is_stored_once(store: SQLMessageStore, lessee: int):
    send(store, "a")
    first = claim_one(store, lessee)
    assert store.publish([message("a again")], replaces=first.lease)

    assert not store.publish([message("a again")], replaces=first.lease)
    assert names(claim(store, lessee)) == ["a again"]


def test_a_message_that_may_be_gone_is_nothing_to_replace(store: SQLMessageStore, lessee: int):
    send(store, "a")
    gone = claim_one(store, lessee)
    store.ack([gone.lease])

    assert store.publish([message("b")], replaces=gone.lease, if_gone=True)
    assert names(claim(store, lessee)) == ["b"]


# -- in the caller's transaction ----------------------------------------------------------


def test_what_is_published_within_a_transaction_appears_with_its_commit(
    store: SQLMessageStore, lessee: int, database: Database
):
    with database.engine.begin() as connection:
        store.within(connection).publish([message("a", priority=1), message("b")])

    assert names(claim(store, lessee)) == ["a", "b"]


def test_what_is_published_within_a_transaction_vanishes_with_its_rollback(
    store: SQLMessageStore, lessee: int, database: Database
):
    with database.engine.connect() as connection:
        store.within(connection).publish([message("a")])
        connection.rollback()

    assert store.counts() == []


def test_a_priority_first_used_in_a_transaction_that_failed_can_be_used_again(
    store: SQLMessageStore, lessee: int, database: Database
):
    with database.engine.connect() as connection:
        store.within(connection).publish([message("a", priority=7)])
        connection.rollback()
    send(store, "b", priority=7)

    assert names(claim(store, lessee)) == ["b"]


def test_a_publish_takes_part_in_a_joined_transaction(store: SQLMessageStore, lessee: int, database: Database):
    def fail() -> None:
        with database.transaction():
            store.publish([message("a", priority=4)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.transaction():
        store.publish([message("b", priority=4)])

    assert names(claim(store, lessee)) == ["b"]


def test_claims_and_acks_within_a_transaction_are_undone_with_it(store: SQLMessageStore, lessee: int, database: Database):
    send(store, "a", "b")
    held = claim_one(store, lessee)
    with database.engine.connect() as connection:
        within = store.within(connection)
        assert names(claim(within, lessee)) == ["b"]
        assert within.ack([held.lease]) == {held.lease}
        connection.rollback()

    assert store.counts() == [QueueCounts("q", ready=1, leased=1)]
    assert names(claim(store, lessee)) == ["b"]


# -- trouble ------------------------------------------------------------------------------


def test_a_store_that_is_away_says_so(store: SQLMessageStore, database: Database):
    connections = [database.engine.connect() for _ in range(database.options.pool_size)]
    database.engine.pool._timeout = 0.01  # type: ignore[attr-defined]

    with pytest.raises(StoreUnavailableError, match="raise pool_size"):
        store.publish([message()])

    for connection in connections:
        connection.close()
