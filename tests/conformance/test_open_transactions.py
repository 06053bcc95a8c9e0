"""A transaction that somebody else leaves open holds up nobody, though it has messages in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..databases import requires
from .sending import claim, send
from .working import do_all_work

pytestmark = [requires(Capability.CONCURRENT_WRITERS), pytest.mark.timeout(60)]


@pytest.fixture
def impatient(database: Database) -> Iterator[Database]:
    """The same database for somebody who is told of the first lock that he would have to wait for."""
    impatient = Database(dataclasses.replace(database.options), clock=database.clock)
    is_mysql = database.dialect.name == "mysql"
    setting = "SET SESSION innodb_lock_wait_timeout = 1" if is_mysql else "SET lock_timeout = '1ms'"

    def connected(connection: Any, record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(setting)

    event.listen(impatient.engine, "connect", connected)
    yield impatient
    impatient.dispose()


@pytest.fixture
def left_open(database: Database, store: SQLMessageStore) -> Iterator[Callable[[], None]]:
    """Publishes in a transaction that stays open to the end of the test."""
    with database.engine.connect() as connection:
        connection.begin()
        yield (
            lambda: store.within(connection).publish([NewMessage("open", b"x", "{}"), NewMessage("q", b"x", "{}")]) and None
        )
        connection.rollback()


def test_all_work_can_be_done_beside_it(impatient: Database, left_open: Callable[[], None]):
    left_open()
    do_all_work(impatient)


@pytest.mark.parametrize("count", [1, 2, 20])
def test_few_or_many_are_settled_beside_it(
    impatient: Database, store: SQLMessageStore, lessee: int, left_open: Callable[[], None], count: int
):
    """A planner may go another way for few rows than for many."""
    send(store, *(f"m{number}" for number in range(3 * count)))
    left_open()
    hasty = SQLMessageStore(impatient)
    leases = [delivery.lease for delivery in claim(hasty, lessee, limit=3 * count)]
    assert len(leases) == 3 * count

    assert hasty.begin(leases) == set(leases)
    assert hasty.start(leases[:count]) == set(leases[:count])
    assert hasty.release(leases[count : 2 * count]) == set(leases[count : 2 * count])
    assert hasty.ack(leases[:count]) == set(leases[:count])
    assert hasty.ack(leases[2 * count :]) == set(leases[2 * count :])
