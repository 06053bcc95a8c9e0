"""What is written of acks and marks, and when."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator

import pytest
from sqlalchemy import func, select, text

from kombu_sqlqueue.messages import Lease
from kombu_sqlqueue.settling import WAIT_FOR, Settler
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..databases import requires
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


def test_of_young_marks_those_of_tasks_that_may_not_run_again_need_not_wait(
    database: Database, store: SQLMessageStore, lessee: int
):
    send(store, "a", "b")
    begun, started = (delivery.lease for delivery in claim(store, lessee))
    settler, _ = settler_on(store)
    settler.begin(begun)
    settler.start(started)
    settler.flush(spare_begun=True)
    assert marked(database) == (0, 1)
    settler.flush(spare_begun=True)
    assert marked(database) == (1, 1)


def test_nothing_is_written_of_what_somebody_else_has_settled(database: Database, store: SQLMessageStore, lessee: int):
    send(store, "a", "b")
    first, second = (delivery.lease for delivery in claim(store, lessee))
    settler, settled = settler_on(store)
    settler.begin(first)
    settler.begin(second)
    settler.forget(first)
    settler.flush()

    assert marked(database) == (1, 0)
    assert settled == []


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


@pytest.fixture
def waits_for_disk(database: Database) -> Iterator[Callable[[], set[str]]]:
    """What PostgreSQL's setting synchronous_commit was in the statements that changed a message."""
    schema = database.options.schema
    made = [
        f"CREATE TABLE {schema}.noted (setting TEXT)",
        (
            f"CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" INSERT INTO {schema}.noted VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
        ),
        (
            f"CREATE TRIGGER noting AFTER UPDATE OR DELETE ON {schema}.sqlqueue_message"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {schema}.note()"
        ),
    ]
    for statement in made:
        database.run(lambda tx, statement=statement: tx.exec_driver_sql(statement))
    yield lambda: set(database.run(lambda tx: tx.scalars(text(f"SELECT setting FROM {schema}.noted")).all()))
    database.run(lambda tx: tx.exec_driver_sql(f"DROP TRIGGER noting ON {schema}.sqlqueue_message"))
    database.run(lambda tx: tx.exec_driver_sql(f"DROP FUNCTION {schema}.note"))
    database.run(lambda tx: tx.exec_driver_sql(f"DROP TABLE {schema}.noted"))


@requires(Capability.LISTEN_NOTIFY)
@pytest.mark.parametrize("durable_acks", [False, True])
def test_claims_and_acks_wait_for_the_disk_if_told_to(
    database: Database, lessee: int, waits_for_disk: Callable[[], set[str]], durable_acks: bool
):
    told = Database(dataclasses.replace(database.options, durable_acks=durable_acks), clock=database.clock)
    store = SQLMessageStore(told)
    send(store, "a")
    (delivery,) = claim(store, lessee)
    store.begin([delivery.lease])
    store.start([delivery.lease])
    store.ack([delivery.lease])
    told.dispose()

    assert waits_for_disk() == ({"on"} if durable_acks else {"off"})
