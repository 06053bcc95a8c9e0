"""Messages that somebody owns: who settles them, and how their owner takes them back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kombu_sqlqueue.messages import NewMessage, Reason
from kombu_sqlqueue.sql.admin import SQLAdmin
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .sending import claim


def send(store: SQLMessageStore, *tasks: str, owner: str | None = "run", due_at: int | None = None) -> None:
    store.publish([NewMessage("q", b"", "{}", task_id=task, owner=owner, due_at=due_at) for task in tasks])


def bodies_left(store: SQLMessageStore) -> int:
    return sum(counts.ready + counts.delayed + counts.leased for counts in store.counts())


def test_what_nobody_holds_is_withdrawn_and_only_that_of_the_owner(store: SQLMessageStore, lessee: int):
    send(store, "held", "free", "other")
    send(store, "later", due_at=2**52)
    send(store, "free", owner="another run")
    send(store, "free", owner=None)
    claim(store, lessee, limit=1)

    assert store.withdraw("run", ["held", "free", "later", "unknown"]) == {"free", "later"}
    assert store.owned(["run"]) == {("run", "held"), ("run", "other")}
    assert store.owned(["another run"]) == {("another run", "free")}
    assert store.withdraw("run", []) == set()
    assert bodies_left(store) == 4


@pytest.mark.requires(Capability.CONCURRENT_WRITERS)
def test_withdrawing_waits_for_no_other_transaction(database: Database, store: SQLMessageStore):
    send(store, "a", "b")
    with database.engine.begin() as other:
        assert store.within(other).withdraw("run", ["a"]) == {"a"}
        assert store.withdraw("run", ["a", "b"]) == {"b"}


def test_a_message_is_settled_once_and_by_its_newest_delivery(store: SQLMessageStore, lessee: int):
    send(store, "a")
    [first] = claim(store, lessee)
    store.release([first.lease])
    [second] = claim(store, lessee)

    assert store.is_alive(first.lease)
    assert not store.settle(first.lease)
    assert store.settle(second.lease)
    # Gone is gone: nobody else will tell what became of it.
    assert store.settle(second.lease)
    assert bodies_left(store) == 0


def test_an_owner_is_told_of_the_dead_while_somebody_is_to_report_them(store: SQLMessageStore, lessee: int, clock: Any):
    send(store, "a", "b")
    first, second = (delivery.lease for delivery in claim(store, lessee, limit=2))
    store.nack(first, max_reclaims=0)
    store.bury(second, Reason.RECLAIMS)

    assert not store.is_alive(first)
    assert store.owned(["run"]) == {("run", "a")}
    store.reported([first.message_id])
    assert store.owned(["run"]) == set()


def test_who_is_redriven_has_its_owner_again(store: SQLMessageStore, lessee: int):
    send(store, "a")
    [delivery] = claim(store, lessee)
    store.bury(delivery.lease, Reason.REJECTED)
    store.redrive([delivery.lease.message_id])

    assert store.owned(["run"]) == {("run", "a")}


def test_whose_end_its_owner_knows_is_not_redriven(store: SQLMessageStore, lessee: int, database: Database):
    send(store, "told", "untold")
    send(store, "parked")
    send(store, "plain", owner=None)
    told, untold, parked, plain = claim(store, lessee, limit=4)
    for delivery in (told, untold, plain):
        store.bury(delivery.lease, Reason.REJECTED)
    store.bury(parked.lease, Reason.UNKNOWN_TASK)
    store.reported([told.lease.message_id])
    ids = [delivery.lease.message_id for delivery in (told, untold, parked, plain)]
    admin = SQLAdmin(database)

    assert admin.owners_told(ids=ids) == {"run"}
    assert admin.owners_told(ids=ids[1:]) == set()
    assert set(admin.dead_ids("q", limit=9)) == set(ids[1:])
    assert store.redrive(ids) == 3
    assert [(dead.task_id, dead.owner) for dead in admin.dead(limit=9)] == [("told", "run")]
    assert admin.owners_told(queue="q") == {"run"}


def test_what_is_parked_is_still_its_owners(store: SQLMessageStore, lessee: int):
    """A worker that knows its task may come."""
    send(store, "a", "b")
    send(store, "a", owner="another run")
    for delivery in claim(store, lessee, limit=3):
        store.bury(delivery.lease, Reason.UNKNOWN_TASK)

    assert store.owned(["run"]) == {("run", "a"), ("run", "b")}
    assert store.withdraw("run", ["a", "c"]) == {"a"}
    assert store.owned(["run", "another run"]) == {("run", "b"), ("another run", "a")}


@pytest.mark.parametrize("reason", [Reason.REJECTED, Reason.UNDECODABLE])
def test_that_it_was_refused_is_to_be_told_its_owner_only(store: SQLMessageStore, lessee: int, reason: Reason):
    send(store, "owned")
    send(store, "plain", owner=None)
    for delivery in claim(store, lessee, limit=2):
        store.bury(delivery.lease, reason)

    assert store.owned(["run"]) == {("run", "owned")}
    assert [dead.task_id for dead in store.claim_reports(limit=9, lease_for=timedelta(seconds=1))] == ["owned"]
