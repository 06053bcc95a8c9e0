"""The dead and the counted: what an operator sees and does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.messages import QueueCounts, Reason
from kombu_sqlqueue.sql.admin import SQLAdmin
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .sending import SECOND, after, claim, claim_one, message, names, send


@pytest.mark.parametrize("reason", [Reason.REJECTED, Reason.UNDECODABLE])
def test_a_buried_message_is_kept_with_its_reason(store: SQLMessageStore, lessee: int, reason: Reason, database: Database):
    send(store, "a", task_id="id", task="name", priority=3)
    lease = claim_one(store, lessee).lease

    assert store.bury(lease, reason)
    assert store.counts() == [QueueCounts("q", dead=1)]
    (dead,) = SQLAdmin(database).dead(limit=10)
    assert (dead.id, dead.delivery, dead.reason, dead.reclaims, dead.holders) == (lease.message_id, 1, reason, 0, ())
    assert (dead.body, dead.priority, dead.task_id, dead.task) == (b"a", 3, "id", "name")


def test_a_buried_message_is_reported_by_who_buries_it(store: SQLMessageStore, lessee: int):
    send(store, "a", task_id="id")
    store.bury(claim_one(store, lessee).lease, Reason.REJECTED)

    assert store.claim_reports(limit=10, lease_for=SECOND) == []


def test_a_message_is_buried_once(store: SQLMessageStore, lessee: int):
    send(store, "a")
    lease = claim_one(store, lessee).lease

    assert store.bury(lease, Reason.REJECTED)
    assert not store.bury(lease, Reason.REJECTED)
    assert store.ack([lease]) == set()


# -- reports ------------------------------------------------------------------------------


@pytest.fixture
def dead_ids(store: SQLMessageStore, lessee: int) -> list[int]:
    """Three tasks that died with their worker, in this order."""
    ids = []
    for name in "abc":
        send(store, name, task_id=name)
        lease = claim_one(store, lessee).lease
        store.nack(lease, max_reclaims=0)
        ids.append(lease.message_id)
    return ids


def test_a_dead_task_is_handed_out_until_its_failure_is_recorded(
    store: SQLMessageStore, dead_ids: list[int], clock: FakeClock
):
    assert [dead.id for dead in store.claim_reports(limit=10, lease_for=10 * SECOND)] == dead_ids
    assert store.claim_reports(limit=10, lease_for=10 * SECOND) == []

    store.reported(dead_ids[:2])
    clock.advance(10 * SECOND)
    assert [dead.id for dead in store.claim_reports(limit=10, lease_for=10 * SECOND)] == dead_ids[2:]

    store.reported(dead_ids)
    clock.advance(timedelta(days=1))
    assert store.claim_reports(limit=10, lease_for=SECOND) == []
    assert store.counts() == [QueueCounts("q", dead=3)]


def test_reports_are_handed_out_in_portions(store: SQLMessageStore, dead_ids: list[int]):
    assert len(store.claim_reports(limit=2, lease_for=SECOND)) == 2
    assert len(store.claim_reports(limit=2, lease_for=SECOND)) == 1


def test_a_dead_message_that_is_no_task_needs_no_report(store: SQLMessageStore, lessee: int):
    send(store, "a")
    store.nack(claim_one(store, lessee).lease, max_reclaims=0)

    assert store.claim_reports(limit=10, lease_for=SECOND) == []
    assert store.counts() == [QueueCounts("q", dead=1)]


def test_reporting_nothing_is_nothing(store: SQLMessageStore):
    store.reported([])


# -- redriving ----------------------------------------------------------------------------


def test_a_redriven_message_starts_afresh_but_its_deliveries_go_on(store: SQLMessageStore, lessee: int):
    send(store, "a", priority=3, task_id="id")
    lost = claim_one(store, lessee).lease
    store.nack(lost, max_reclaims=0)

    assert store.redrive([lost.message_id]) == 1
    again = claim_one(store, lessee)
    assert (again.lease.message_id, again.lease.delivery) == (lost.message_id, 2)
    assert (again.body, again.priority, again.reclaims) == (b"a", 3, 0)
    assert store.ack([lost]) == set()


def test_the_holders_of_a_redriven_message_are_forgotten(store: SQLMessageStore, lessee: int, other: int):
    send(store, "a", task_id="id")
    lost = claim_one(store, lessee).lease
    store.nack(lost, max_reclaims=0)
    store.redrive([lost.message_id])
    store.nack(claim_one(store, other).lease, max_reclaims=0)

    (dead,) = store.claim_reports(limit=10, lease_for=SECOND)
    assert dead.holders == ("other",)


def test_redriven_messages_join_the_end_of_the_line_in_their_old_order(
    store: SQLMessageStore, lessee: int, dead_ids: list[int]
):
    send(store, "waiting")

    assert store.redrive([*reversed(dead_ids), 10**9]) == 3
    assert names(claim(store, lessee)) == ["waiting", "a", "b", "c"]
    assert store.counts() == [QueueCounts("q", leased=4)]


def test_a_message_is_redriven_once(store: SQLMessageStore, dead_ids: list[int]):
    assert store.redrive(dead_ids[:1]) == 1
    assert store.redrive(dead_ids[:1]) == 0
    assert store.redrive([]) == 0


# -- purging and counting -----------------------------------------------------------------


def test_a_purge_deletes_what_waits_and_tells_how_much(store: SQLMessageStore, lessee: int, clock: FakeClock):
    send(store, "held", "begun")
    _, begun = claim(store, lessee)
    store.start([begun.lease])
    send(store, "a", "b")
    send(store, "c", priority=5)
    send(store, "later", due_at=after(clock, SECOND))
    send(store, "elsewhere", queue="other")

    assert store.purge("q") == 4
    assert store.counts() == [QueueCounts("other", ready=1), QueueCounts("q", leased=1, started=1)]
    assert store.purge("q") == 0


def test_a_purge_within_a_transaction_is_undone_with_it(store: SQLMessageStore, database: Database):
    send(store, "a", "b")
    with database.engine.connect() as connection:
        assert store.within(connection).purge("q") == 2
        connection.rollback()

    assert store.counts() == [QueueCounts("q", ready=2)]


def test_counts_tell_how_many_are_where(store: SQLMessageStore, lessee: int, clock: FakeClock):
    assert store.counts() == []

    send(store, "dead", "begun", "held", queue="busy")
    dead, begun, _ = claim(store, lessee, "busy")
    store.bury(dead.lease, Reason.REJECTED)
    store.start([begun.lease])
    store.publish([message(queue="busy", due_at=after(clock, SECOND)), message(queue="busy"), message(queue="another")])

    assert store.counts() == [
        QueueCounts("another", ready=1),
        QueueCounts("busy", ready=1, delayed=1, leased=1, started=1, dead=1),
    ]
    assert store.counts(["another", "unknown"]) == [QueueCounts("another", ready=1)]
    assert store.counts([]) == []
