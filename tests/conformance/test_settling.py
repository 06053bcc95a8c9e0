"""What is written of acks and marks, and when."""

from __future__ import annotations

import time
from collections.abc import Collection

from sqlalchemy import func, select

from kombu_sqlqueue.messages import Lease
from kombu_sqlqueue.settling import WAIT_FOR, Settler
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .sending import claim, send


def settler_on(store: SQLMessageStore) -> tuple[Settler, list[Lease]]:
    settled: list[Lease] = []

    def take_note(leases: Collection[Lease]) -> None:
        settled.extend(leases)

    return Settler(store, on_settled=take_note), settled


def marked(database: Database) -> tuple[int, int]:
    """How many messages have begun, and started."""
    m = database.tables.message.c
    return tuple(database.run(lambda tx: tx.execute(select(func.count(m.begun_at), func.count(m.started_at))).one()))


def test_a_mark_spared_once_is_written_at_the_next_flush(database: Database, store: SQLMessageStore, lessee: int):
    send(store, "a", "b")
    first, second = (delivery.lease for delivery in claim(store, lessee))
    settler, _ = settler_on(store)
    settler.begin(first)
    settler.start(second)

    settler.flush(spare_young=True)
    assert marked(database) == (0, 0)
    settler.flush(spare_young=True)
    assert marked(database) == (1, 1)
    assert len(settler) == 0


def test_a_plain_flush_spares_nothing(database: Database, store: SQLMessageStore, lessee: int):
    send(store, "a")
    (delivery,) = claim(store, lessee)
    settler, _ = settler_on(store)
    settler.begin(delivery.lease)

    settler.flush()
    assert marked(database) == (1, 0)


def test_acks_are_never_spared(database: Database, store: SQLMessageStore, lessee: int):
    send(store, "a", "b")
    first, second = (delivery.lease for delivery in claim(store, lessee))
    settler, settled = settler_on(store)
    settler.begin(first)
    settler.begin(second)
    settler.ack(first)

    settler.flush(spare_young=True)
    assert settled == [first]
    assert store.counts()[0].leased == 1
    settler.ack(second)
    settler.flush(spare_young=True)
    assert store.counts() == []
    assert marked(database) == (0, 0)


def test_decisions_are_due_after_a_moment(store: SQLMessageStore, lessee: int):
    send(store, "a")
    (delivery,) = claim(store, lessee)
    settler, _ = settler_on(store)
    assert not settler.due
    settler.ack(delivery.lease)
    time.sleep(WAIT_FOR)
    assert settler.due
    settler.flush(spare_young=True)
    assert not settler.due
