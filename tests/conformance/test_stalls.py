"""Neighbours that stand in the way: who stalls within a transaction, who locks the tables, who takes all connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from kombu_sqlqueue.errors import StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..databases import requires
from .sending import claim, message, names

pytestmark = requires(Capability.CONCURRENT_WRITERS)

#: What a patient person waits for something that has to happen by itself, in seconds.
PATIENCE = 20.0

Another = Callable[[], Database]


@pytest.fixture
def another(database: Database) -> Iterator[Another]:
    """Opens the same tables as other processes would."""
    opened: list[Database] = []

    def open() -> Database:
        opened.append(Database(database.options, clock=database.clock))
        return opened[-1]

    yield open
    for each in opened:
        each.dispose()


def test_the_locks_of_a_process_that_stalls_in_a_transaction_end_by_themselves(
    store: SQLMessageStore, lessee: int, another: Another, monkeypatch: pytest.MonkeyPatch
):
    """Others go on. The stalled one, once it wakes, finds its work undone and does it again."""
    monkeypatch.setattr("kombu_sqlqueue.sql.postgresql.IDLE_IN_TRANSACTION", 1)
    monkeypatch.setattr("kombu_sqlqueue.sql.mysql_connecting.IDLE_IN_TRANSACTION", 1)
    stalled, other = another(), another()
    tries: list[bool] = []
    locked, gone_on = threading.Event(), threading.Event()

    def work(tx) -> None:
        tx.execute(text(f"UPDATE {table(stalled, 'lessee')} SET name = 'stalled' WHERE id = {lessee}"))
        locked.set()
        tries.append(gone_on.wait(PATIENCE))

    thread = threading.Thread(target=lambda: stalled.run(work))
    thread.start()
    assert locked.wait(PATIENCE)
    assert SQLMessageStore(other).renew(lessee)
    gone_on.set()
    thread.join(PATIENCE)

    assert tries == [True, True]


def test_who_finds_the_tables_locked_for_long_is_told_so(
    store: SQLMessageStore, lessee: int, another: Another, monkeypatch: pytest.MonkeyPatch
):
    """And not left waiting for as long as it may take; when the lock is gone all is as before."""
    monkeypatch.setattr("kombu_sqlqueue.sql.connecting.SETTINGS", "-c lock_timeout=100ms")
    monkeypatch.setattr("kombu_sqlqueue.sql.mysql_connecting.LOCK_TIMEOUT", 1)
    administrator, publisher = another(), SQLMessageStore(another())
    lock, unlock = LOCKS[administrator.dialect.name]
    with administrator.engine.connect() as connection:
        with connection.begin():
            connection.execute(text(lock.format(table(administrator, "message"))))
            with pytest.raises(StoreUnavailableError, match=r"(?i)lock"):
                publisher.publish([message("refused")])
        connection.execute(text(unlock))
    publisher.publish([message("stored")])

    assert names(claim(store, lessee)) == ["stored"]


#: How an administrator takes a table for himself, and gives it back.
LOCKS = {
    "postgresql": ("LOCK TABLE {}", "SELECT 1"),
    "mysql": ("LOCK TABLES {} WRITE", "UNLOCK TABLES"),
}


def table(database: Database, name: str) -> str:
    schema = database.options.schema
    return f"{schema}.sqlqueue_{name}" if schema else f"sqlqueue_{name}"


def test_a_line_on_which_everything_is_lost_in_silence_is_given_up_within_a_minute(database: Database):
    """Also while something that was sent is not confirmed: then keepalives rest."""
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        sock = socket.socket(fileno=driver.fileno()) if hasattr(driver, "fileno") else driver._sock
        idle, between, probes = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        unconfirmed = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        if hasattr(driver, "fileno"):
            sock.detach()

    assert idle + between * probes <= 60
    assert 0 < unconfirmed <= 60_000


@requires(Capability.LISTEN_NOTIFY)
def test_a_server_without_a_free_connection_is_one_that_is_away(database: Database, another: Another):
    """A publisher is told so, as by any database that is away, and goes on when there is one."""
    role = "sqlqueue_few_" + (database.options.schema or "x")
    administrator = another()

    def execute(statement: str) -> None:
        administrator.statement(lambda tx: tx.execute(text(statement)))

    execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    try:
        limited = Database(DatabaseOptions(with_user(database.options.url, role), schema=database.options.schema))
        with pytest.raises(StoreUnavailableError, match="too many connections"):
            limited.ping()
        execute(f"ALTER ROLE {role} CONNECTION LIMIT 5")
        limited.ping()
        limited.dispose()
    finally:
        execute(f"DROP ROLE {role}")


def with_user(url: str, role: str) -> str:
    return make_url(url).set(username=role).render_as_string(hide_password=False)
