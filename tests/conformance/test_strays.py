"""A claim whose answer was lost: what it leased comes back, though its lessee lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from kombu_sqlqueue.keeper import LeaseKeeper
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.routing import SQLRoutingStore

from ..databases import requires
from ..proxy import Proxy
from .sending import send
from .test_database import address, by_way_of


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(address(database)) as proxy:
        yield proxy


@pytest.fixture
def keeper(database: Database, proxy: Proxy) -> Iterator[LeaseKeeper]:
    """It reaches the database through a line that breaks when told to."""
    distant = Database(by_way_of(proxy, database))
    keeper = LeaseKeeper(
        SQLMessageStore(distant),
        SQLRoutingStore(distant),
        name="one",
        lease_for=timedelta(seconds=1),
        max_reclaims=5,
        in_database=lambda: False,
    )
    yield keeper
    keeper.close()
    distant.dispose()


@requires(Capability.COMMIT_STATUS)
@requires(Capability.LISTEN_NOTIFY)
def test_what_a_claim_leased_that_was_not_answered_is_claimed_again(
    store: SQLMessageStore, keeper: LeaseKeeper, proxy: Proxy
):
    """The store tries again by itself and finds nothing: nobody is told that anything went wrong."""
    keeper.claim(["q"], 1)
    send(store, "a")
    proxy.break_at(b"SKIP LOCKED", answered=True)
    claimed = keeper.claim(["q"], 1)
    assert proxy.broken == 1
    assert claimed == []

    until = time.monotonic() + 20
    while not claimed and time.monotonic() < until:
        time.sleep(0.1)
        claimed = keeper.claim(["q"], 1)
    assert [delivery.body for delivery in claimed] == [b"a"]
