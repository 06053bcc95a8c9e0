"""A commit whose answer was lost with the server: nobody is told that it took effect because another's did."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Connection, select, text

from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.floors import MARGIN
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..databases import migrate
from ..servers import PostgresServer, started_server

TRANSACTIONS = 100


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """It writes nothing down until it is told to."""
    with started_server(synchronous_commit="off", wal_writer_delay="10s", bgwriter_lru_maxpages="0") as server:
        server.start()
        yield server


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    database = Database(DatabaseOptions(normalise(server.url)))
    migrate(database.options)
    yield database
    database.dispose()


def transaction_id(database: Database) -> str:
    """That of a transaction which commits."""

    def work(tx: Connection) -> str:
        tx.execute(text("SELECT txid_current()"))
        return str(database.dialect.transaction_id(tx))

    return database.run(work)


def fate(database: Database, of: str) -> bool | None:
    return database.statement(lambda tx: database.dialect.committed(tx, of))


def test_what_the_server_forgot_in_a_crash_did_not_take_effect(database: Database, server: PostgresServer):
    """Nobody has used the number since."""
    server.ask("CHECKPOINT")
    lost = [transaction_id(database) for _ in range(TRANSACTIONS)][-1]
    assert fate(database, lost) is True
    server.stop("immediate")
    server.start()

    assert fate(database, lost) is False


def test_a_number_that_was_given_again_after_a_crash_tells_nothing(database: Database, server: PostgresServer):
    server.ask("CHECKPOINT")
    lost = [transaction_id(database) for _ in range(TRANSACTIONS)][-1]
    server.stop("immediate")
    server.start()
    again = {transaction_id(database).partition(" ")[0] for _ in range(2 * TRANSACTIONS)}
    assert lost.partition(" ")[0] in again

    assert fate(database, lost) is None
    assert database.statement(lambda tx: tx.scalar(select(1))) == 1


def test_what_is_placed_where_a_sequence_was_set_back_during_an_outage_is_claimed_at_once(
    database: Database, server: PostgresServer
):
    """Below what was claimed before, as after a crash or a failover, and no later than the next claim."""
    store = SQLMessageStore(database)
    lessee = store.enrol("one", lease_for=timedelta(minutes=1))
    for _ in range(5):
        store.publish([NewMessage("q", b"", "{}") for _ in range(MARGIN)])
        assert len(store.claim(["q"], limit=MARGIN, lessee=lessee)) == MARGIN
    server.ask("SELECT setval('sqlqueue_position', 1)")
    server.cut()
    store.publish([NewMessage("q", b"", "{}")])

    assert len(store.claim(["q"], limit=1, lessee=lessee)) == 1
