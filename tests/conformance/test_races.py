"""Real processes that want the same: each message has one winner."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from kombu_sqlqueue.messages import Lease, QueueCounts
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore

from . import racing
from .sending import claim, message, send

RACERS = 4


#: Starts each of these at the same moment in a process of its own; what they return.
Race = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def racers() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RACERS)
    with ProcessPoolExecutor(RACERS, mp_context=context, initializer=racing.prepare, initargs=(barrier,)) as pool:
        yield pool


@pytest.fixture
def store(database: Database) -> SQLMessageStore:
    """A store in real time, as that of the racers."""
    database.clock = None
    return SQLMessageStore(database)


@pytest.fixture
def race(racers: ProcessPoolExecutor, database_options: DatabaseOptions) -> Race:
    def start(*runs: tuple[Any, ...]) -> list[Any]:
        assert len(runs) == RACERS
        futures = [racers.submit(run, database_options, *arguments) for run, *arguments in runs]
        return [future.result(timeout=100) for future in futures]

    return start


def test_every_message_is_acked_exactly_once(store: SQLMessageStore, race: Race):
    """Each process publishes, claims, acks and releases, beside the others."""
    count = 150
    acked: Counter[str] = Counter()
    for each in race(*((racing.publishes_and_claims, f"racer {racer}", count, RACERS) for racer in range(RACERS))):
        acked.update(each)

    assert acked == {f"racer {racer} {number}": 1 for racer in range(RACERS) for number in range(count)}
    assert store.counts() == []


def abandoned(store: SQLMessageStore, count: int) -> list[Lease]:
    """Leases of somebody whose time has come."""
    send(store, *(f"{number}" for number in range(count)))
    leases = [delivery.lease for delivery in claim(store, store.enrol("dead", lease_for=timedelta(0)), limit=count)]
    assert len(leases) == count
    return leases


def test_what_the_dead_left_is_taken_back_once(store: SQLMessageStore, race: Race):
    abandoned(store, 100)
    back = race(*[(racing.reclaims, 30)] * RACERS)

    assert sum(each.ready for each in back) == 100
    assert [delivery.reclaims for delivery in claim(store, store.enrol("heir", lease_for=timedelta(hours=1)))] == [1] * 100


def test_a_late_ack_and_a_reclaim_leave_each_message_gone_or_ready(store: SQLMessageStore, race: Race):
    leases = abandoned(store, 120)
    good, more, *_ = race(
        (racing.acks, leases[:60]), (racing.acks, leases[40:100]), (racing.reclaims, 25), (racing.reclaims, 25)
    )

    assert good | more == set(leases[:100])
    assert not good & more
    assert store.counts() == [QueueCounts("q", ready=20)]


def test_a_due_message_is_promoted_once(store: SQLMessageStore, database: Database, race: Race):
    now = database.statement(lambda tx: tx.scalar(select(database.now())))
    store.publish([message(f"{number}", due_at=now + 500_000) for number in range(100)])
    promoted = race(*[(racing.promotes, 1.0)] * RACERS)

    assert sum(promoted) + store.promote(limit=100).ready == 100
    assert store.counts() == [QueueCounts("q", ready=100)]


def test_a_death_is_handed_to_one_reporter(store: SQLMessageStore, race: Race):
    send(store, *(f"{number}" for number in range(100)), task_id="id")
    for delivery in claim(store, store.enrol("w", lease_for=timedelta(hours=1))):
        store.nack(delivery.lease, max_reclaims=0)
    reported = [dead for each in race(*[(racing.reports, 20)] * RACERS) for dead in each]

    assert len(reported) == 100
    assert len(set(reported)) == 100
