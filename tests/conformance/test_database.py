"""How work is done in a database: whole, again where that helps, and with its errors in our words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text

from kombu_sqlqueue.errors import ConfigurationError, OutcomeUnknownError, SchemaError, StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..databases import requires
from ..proxy import Pooler, Proxy
from .sending import SECOND, claim, message, names


def test_the_time_is_the_databases_own(database_options: DatabaseOptions):
    database = Database(database_options)
    earlier, later = (database.statement(lambda tx: tx.scalar(select(database.now()))) for _ in range(2))
    database.dispose()

    assert 1_600_000_000_000_000 < earlier <= later


def test_the_time_of_a_statement_is_that_of_its_execution(database: Database, clock):
    statement = select(database.now())
    before = database.statement(lambda tx: tx.scalar(statement))
    clock.advance(SECOND)

    assert database.statement(lambda tx: tx.scalar(statement)) == before + 1_000_000


def test_work_is_done_whole_or_not_at_all(database: Database):
    lane = database.tables.lane

    def work(tx) -> None:
        tx.execute(insert(lane).values(queue="q", priority=1))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.run(work)
    assert count(database, lane) == 0


def test_joining_work_takes_part_in_the_transaction_around_it(database: Database):
    lane = database.tables.lane
    with database.engine.connect() as connection, database.joined(connection):
        assert database.in_transaction
        database.run(lambda tx: tx.execute(insert(lane).values(queue="q", priority=1)), joins=True)
        connection.rollback()

    assert not database.in_transaction
    assert count(database, lane) == 0


def test_a_transaction_within_a_transaction_is_the_same(database: Database):
    with database.transaction() as outer, database.transaction() as inner:
        assert inner is outer


def test_an_upsert_inserts_or_updates_if_its_condition_holds(database: Database):
    waiter = database.tables.waiter

    def upsert(until: int) -> int:
        values = {"topic": "t", "waiter": "w", "expires_at": until}
        later = waiter.c.expires_at < until
        statement = database.dialect.upsert(waiter, values, update=["expires_at"], where=later)
        database.run(lambda tx: tx.execute(statement))
        return database.run(lambda tx: tx.scalar(select(waiter.c.expires_at)))

    assert [upsert(until) for until in (5, 9, 7)] == [5, 9, 9]


def test_rows_that_exist_are_not_inserted_again(database: Database):
    lane = database.tables.lane
    rows = [{"queue": "q", "priority": priority} for priority in (1, 2, 3)]
    database.run(lambda tx: tx.execute(database.dialect.insert_missing(lane, rows[:2])))
    database.run(lambda tx: tx.execute(database.dialect.insert_missing(lane, rows)))

    assert count(database, lane) == 3


def test_missing_tables_are_told_with_the_command_that_makes_them(database_options: DatabaseOptions):
    options = DatabaseOptions(database_options.url, table_prefix="nowhere_")
    database = Database(options)
    with pytest.raises(SchemaError, match=r"nowhere_.*run `celery sqlqueue migrate`"):
        SQLMessageStore(database).publish([message()])
    database.dispose()


def test_a_url_with_a_password_never_shows_it(database_options: DatabaseOptions):
    database = Database(DatabaseOptions("postgresql+psycopg://user:secret@127.0.0.1:1/db?connect_timeout=1"))

    with pytest.raises(StoreUnavailableError, match=r"user:\*\*\*@127") as caught:
        database.ping()
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(database)


# -- SQLite's single writer ---------------------------------------------------------------


@pytest.fixture
def file_options(tmp_path: Path) -> DatabaseOptions:
    return DatabaseOptions(f"sqlite:///{tmp_path}/queue.db")


def test_a_missing_directory_is_named():
    with pytest.raises(ConfigurationError, match=r"directory /nowhere/at/all of the database queue\.db does not exist"):
        Database(DatabaseOptions("sqlite:////nowhere/at/all/queue.db"))


def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "queue.db").write_bytes(b"no database " * 1000)
    database = Database(DatabaseOptions(f"sqlite:///{tmp_path}/queue.db"))

    with pytest.raises(Exception, match="file is not a database"):
        database.ping()


def test_commits_survive_a_loss_of_power(file_options: DatabaseOptions):
    database = Database(file_options)
    with database.engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA synchronous")) == 2
    database.dispose()


def test_a_reader_does_not_wait_for_the_writer(file_options: DatabaseOptions):
    writer, reader = Database(file_options), Database(file_options)
    writer.run(lambda tx: writer.tables.metadata.create_all(tx))
    with writer.transaction() as tx:
        tx.execute(insert(writer.tables.lane).values(queue="q", priority=1))
        assert reader.statement(lambda tx: tx.scalar(select(func.count()).select_from(reader.tables.lane))) == 0
    writer.dispose()
    reader.dispose()


def test_a_writer_waits_for_the_one_before_it(file_options: DatabaseOptions):
    """Of another process, as far as SQLite can tell: nothing but the file is shared."""
    first, second = Database(file_options), Database(file_options)
    first.run(lambda tx: first.tables.metadata.create_all(tx))
    lane = first.tables.lane
    with first.transaction() as tx:
        tx.execute(insert(lane).values(queue="q", priority=1))
        waiting = threading.Thread(
            target=lambda: second.run(lambda tx: tx.execute(insert(lane).values(queue="q", priority=2)))
        )
        waiting.start()
        waiting.join(timeout=0.05)
        assert waiting.is_alive()
    waiting.join(timeout=10)

    assert count(first, lane) == 2
    first.dispose()
    second.dispose()


def test_a_writer_that_waits_too_long_gives_up(file_options: DatabaseOptions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kombu_sqlqueue.sql.sqlite.LOCK_TIMEOUT", 0.05)
    first, second = Database(file_options), Database(file_options)
    with first.transaction(), pytest.raises(StoreUnavailableError, match="database is locked"):
        second.run(lambda tx: None)
    second.run(lambda tx: None)
    first.dispose()
    second.dispose()


def test_threads_share_the_connection_of_a_database_without_a_file():
    database = Database(DatabaseOptions("sqlite://"))
    database.run(lambda tx: database.tables.metadata.create_all(tx))
    lane = database.tables.lane
    threads = [
        threading.Thread(target=lambda n=n: database.run(lambda tx: tx.execute(insert(lane).values(queue="q", priority=n))))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert count(database, lane) == 20
    database.dispose()


# -- lines that break ---------------------------------------------------------------------

#: As PostgreSQL is told, and not "READ COMMITTED".
COMMIT = b"COMMIT\0"


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(address(database)) as proxy:
        yield proxy


@pytest.fixture
def through(database: Database, proxy: Proxy) -> Iterator[SQLMessageStore]:
    """The store, reached through a line that breaks when told to."""
    distant = Database(by_way_of(proxy, database), clock=database.clock)
    yield SQLMessageStore(distant)
    distant.dispose()


def address(database: Database) -> tuple[str, int] | str:
    url = database.engine.url
    host, port = url.query.get("host") or url.host, url.port or 5432
    assert isinstance(host, str)
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)


def by_way_of(proxy: Proxy, database: Database) -> DatabaseOptions:
    url = database.engine.url.difference_update_query(["host"]).set(host="127.0.0.1", port=proxy.port)
    url = url.update_query_dict({"sslmode": "disable"})
    return DatabaseOptions(url.render_as_string(hide_password=False), schema=database.options.schema)


@requires(Capability.COMMIT_STATUS)
@requires(Capability.CONCURRENT_WRITERS)
def test_a_line_that_broke_before_the_commit_is_no_trouble(
    store: SQLMessageStore, through: SQLMessageStore, proxy: Proxy, lessee: int
):
    through.publish([message("a")])
    proxy.break_at(b"INSERT INTO")
    through.publish([message("b")])

    assert names(claim(store, lessee)) == ["a", "b"]


@requires(Capability.COMMIT_STATUS)
@requires(Capability.CONCURRENT_WRITERS)
def test_a_commit_that_took_effect_is_not_repeated(
    store: SQLMessageStore, through: SQLMessageStore, proxy: Proxy, lessee: int
):
    through.publish([message("a")])
    proxy.break_at(COMMIT, answered=True)
    through.publish([message("b")])

    assert proxy.broken == 1
    assert names(claim(store, lessee)) == ["a", "b"]


@requires(Capability.COMMIT_STATUS)
@requires(Capability.CONCURRENT_WRITERS)
def test_a_commit_that_never_arrived_is_repeated(
    store: SQLMessageStore, through: SQLMessageStore, proxy: Proxy, lessee: int
):
    through.publish([message("a")])
    proxy.break_at(COMMIT)
    through.publish([message("b")])

    assert proxy.broken == 1
    assert names(claim(store, lessee)) == ["a", "b"]


@requires(Capability.COMMIT_STATUS)
@requires(Capability.CONCURRENT_WRITERS)
def test_who_cannot_learn_what_became_of_a_commit_is_told_so(
    through: SQLMessageStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kombu_sqlqueue.sql.database.ASK_FOR", 0.3)
    through.publish([message("a")])
    proxy.break_at(COMMIT, for_good=True)

    with pytest.raises(OutcomeUnknownError):
        through.publish([message("b")])


@requires(Capability.LISTEN_NOTIFY)
def test_behind_a_pooler_that_passes_no_settings_on_nothing_is_prepared(database: Database, lessee: int):
    with Pooler(address(database)) as pooler:
        distant = Database(by_way_of(pooler, database))
        store = SQLMessageStore(distant)
        for _ in range(20):
            store.publish([message()])
            store.ack([delivery.lease for delivery in claim(store, lessee)])
        distant.dispose()

        assert pooler.refused == 1
        assert pooler.prepared == 0


def count(database: Database, table) -> int:
    return database.run(lambda tx: tx.scalar(select(func.count()).select_from(table)))
