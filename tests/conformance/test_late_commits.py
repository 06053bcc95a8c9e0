"""A message is found though it was committed when claims had long gone past its position."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Connection, func, select

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.floors import LOOK_FROM_HEAD, MARGIN, TICK
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..celery.workers import eventually
from ..databases import requires
from .sending import claim, message, names, send

pytestmark = requires(Capability.LATE_COMMITS)

#: A moment that is less than a tick.
MOMENT = TICK / 10


class Moments:
    """The seconds by which claims look back; they pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def moments() -> Moments:
    return Moments()


@pytest.fixture
def store(database: Database, moments: Moments) -> SQLMessageStore:
    return SQLMessageStore(database, monotonic=moments)


@pytest.fixture
def lessee(store: SQLMessageStore) -> int:
    return store.enrol("worker", lease_for=timedelta(hours=1))


@pytest.fixture
def slow_writer(database: Database) -> Iterator[Connection]:
    """A connection whose transaction stays open until the test commits it."""
    with database.engine.connect() as connection:
        yield connection


def pass_by(store: SQLMessageStore, lessee: int, *, count: int = MARGIN + 50, priority: int = 0) -> None:
    """Let so many messages be published and claimed that the margin is left behind."""
    send(store, *["fast"] * count, priority=priority)
    assert len(claim(store, lessee, limit=count)) == count


def commit(writer: Connection) -> None:
    """Commit. PostgreSQL tells of the transactions of all its databases, so wait for those of other tests that had begun by then."""
    writer.commit()
    if writer.dialect.name != "postgresql":
        return
    snapshot = func.txid_current_snapshot()
    next_id = writer.scalar(select(func.txid_snapshot_xmax(snapshot)))
    writer.rollback()

    def ended() -> bool:
        oldest_open = writer.scalar(select(func.txid_snapshot_xmin(snapshot)))
        writer.rollback()
        return bool(oldest_open >= next_id)

    eventually(ended)


def run_for(store: SQLMessageStore, lessee: int, moments: Moments, seconds: float) -> list[str]:
    """Claim ten times a second for so long."""
    found = []
    for _ in range(round(seconds * 10)):
        moments.now += 0.1
        found += names(claim(store, lessee))
    return found


def test_within_the_margin_a_late_message_is_found_at_once(
    store: SQLMessageStore, lessee: int, moments: Moments, slow_writer: Connection
):
    pass_by(store, lessee)
    store.within(slow_writer).publish([message("slow")])
    pass_by(store, lessee, count=MARGIN - 10)
    commit(slow_writer)

    assert names(claim(store, lessee)) == ["slow"]


@requires(Capability.LATERAL)
def test_a_writer_shorter_than_a_tick_is_found_after_a_tick(
    store: SQLMessageStore, lessee: int, moments: Moments, slow_writer: Connection
):
    pass_by(store, lessee)
    run_for(store, lessee, moments, 1)
    store.within(slow_writer).publish([message("slow")])
    pass_by(store, lessee)
    commit(slow_writer)
    assert claim(store, lessee) == []

    assert run_for(store, lessee, moments, 2 * TICK) == ["slow"]


@pytest.mark.parametrize("seconds", [1, 5])
def test_a_writer_of_some_seconds_is_found_when_it_has_ended(
    store: SQLMessageStore, lessee: int, moments: Moments, slow_writer: Connection, seconds: int
):
    moments.now += 0.1
    pass_by(store, lessee)
    run_for(store, lessee, moments, 1)
    store.within(slow_writer).publish([message("slow")])
    for _ in range(seconds * 4):
        pass_by(store, lessee)
        moments.now += TICK
    commit(slow_writer)

    assert run_for(store, lessee, moments, 2 * TICK) == ["slow"]


def test_all_of_a_late_bulk_is_found_by_small_claims(
    store: SQLMessageStore, lessee: int, moments: Moments, slow_writer: Connection
):
    pass_by(store, lessee)
    run_for(store, lessee, moments, 1)
    bulk = [f"{number}" for number in range(300)]
    store.within(slow_writer).publish([message(name) for name in bulk])
    for _ in range(4):
        pass_by(store, lessee)
        moments.now += TICK
    commit(slow_writer)

    found = []
    for _ in range(40):
        moments.now += MOMENT
        found += names(claim(store, lessee, limit=8))
    assert found == bulk


def test_a_late_message_is_found_behind_urgent_ones(
    store: SQLMessageStore, lessee: int, moments: Moments, slow_writer: Connection
):
    pass_by(store, lessee)
    pass_by(store, lessee, priority=5)
    run_for(store, lessee, moments, 1)
    store.within(slow_writer).publish([message("slow")])
    pass_by(store, lessee)
    moments.now += TICK
    send(store, *["urgent"] * 40, priority=5)
    commit(slow_writer)

    # While there is anything urgent no claim comes to the other lane.
    for _ in range(10):
        moments.now += TICK
        assert names(claim(store, lessee, limit=4)) == ["urgent"] * 4
    assert run_for(store, lessee, moments, 2 * TICK) == ["slow"]


def test_a_short_writer_is_found_in_the_end_though_a_long_one_stays_open(
    store: SQLMessageStore, lessee: int, moments: Moments, slow_writer: Connection, database: Database
):
    pass_by(store, lessee)
    store.within(slow_writer).publish([message("hours")])
    with database.engine.connect() as another:
        store.within(another).publish([message("slow")])
        for _ in range(8):
            pass_by(store, lessee)
            moments.now += TICK
        another.commit()

    assert run_for(store, lessee, moments, LOOK_FROM_HEAD + 1) == ["slow"]


def test_a_late_release_is_found(store: SQLMessageStore, lessee: int, moments: Moments, slow_writer: Connection):
    send(store, "slow", *["fast"] * (MARGIN + 50))
    slow, *fast = claim(store, lessee, limit=200)
    store.release([fast[0].lease])
    claim(store, lessee)
    run_for(store, lessee, moments, 1)
    store.within(slow_writer).release([slow.lease])
    store.release([delivery.lease for delivery in fast[1:]])
    claim(store, lessee, limit=200)
    moments.now += TICK
    commit(slow_writer)

    assert run_for(store, lessee, moments, 3 * TICK) == ["slow"]
