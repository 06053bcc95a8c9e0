"""Tasks that are sent in the caller's own transaction: there when it commits, never there when it rolls back."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from celery import Celery, chain, chord, group
from celery.exceptions import TimeoutError as CeleryTimeoutError
from sqlalchemy import select

from kombu_sqlqueue import TransactionFailedError, TransactionNotSupportedError, bulk_publish, in_transaction
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database

from .callers import KINDS, Caller, caller, orders


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames and not any(
        mark.args[0] == "kind" for mark in metafunc.definition.iter_markers("parametrize")
    ):
        names = metafunc.config.getoption("--database") or list(KINDS)
        metafunc.parametrize("kind", [f"{name}-{kind}" for name in names for kind in KINDS[name]])


@pytest.fixture
def options(kind: str, databases: dict[str, DatabaseOptions]) -> DatabaseOptions:
    return databases[kind.partition("-")[0]]


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:8]}"


@pytest.fixture
def app(options: DatabaseOptions, queue: str) -> Iterator[Celery]:
    """An app whose broker and results are in the database under test."""
    url = f"sqlqueue+{options.url}"
    with Celery("tests", set_as_current=False, broker=url, backend=url) as app:
        app.conf.update(broker_transport_options={"schema": options.schema}, task_default_queue=queue)
        yield app
    process_for(options).messages.purge(queue)
    process_for(options).close()


@pytest.fixture
def caller_(kind: str, options: DatabaseOptions) -> Iterator[Caller]:
    """An application with a connection and a table of its own."""
    database_name, _, how = kind.partition("-")
    with orders(options) as table, caller(how, database_name, options, table) as made:
        yield made
        with contextlib.suppress(Exception):  # It may be broken.
            made.rollback()


class Seen:
    """What others see of the queue and the orders."""

    def __init__(self, options: DatabaseOptions, queue: str, table: str) -> None:
        self._database = Database(options)
        self._queue, self._table = queue, table

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks that wait, in their order."""
        m = self._database.tables.message.c
        waiting = select(m.task).where(m.queue == self._queue).order_by(m.position)
        return list(self._database.statement(lambda tx: tx.scalars(waiting).all()))

    @property
    def orders(self) -> list[int]:
        rows = sa.text(f"SELECT id FROM {self._table} ORDER BY id")
        return list(self._database.statement(lambda tx: tx.scalars(rows).all()))

    @property
    def chords(self) -> int:
        return self._database.statement(lambda tx: len(tx.execute(select(self._database.tables.chord)).all()))


@pytest.fixture
def seen(options: DatabaseOptions, queue: str, caller_: Caller) -> Iterator[Seen]:
    seen = Seen(options, queue, caller_.table)
    yield seen
    seen._database.dispose()


def test_a_task_is_there_with_the_commit_and_not_before(app: Celery, caller_: Caller, seen: Seen):
    caller_.order(1)
    result = caller_.send(lambda: app.send_task("ship"))
    before = seen.tasks, seen.orders
    caller_.commit()

    assert result.id
    assert before == ([], [])
    assert (seen.tasks, seen.orders) == (["ship"], [1])


def test_a_task_never_was_there_after_a_rollback(app: Celery, caller_: Caller, seen: Seen):
    app.send_task("before")  # What is declared in the transaction is not what is tested.
    caller_.order(1)
    caller_.send(lambda: app.send_task("ship", priority=7))
    caller_.rollback()
    caller_.order(2)
    caller_.send(lambda: app.send_task("again", priority=7))
    caller_.commit()

    assert (seen.tasks, seen.orders) == (["before", "again"], [2])


def test_what_was_declared_in_a_transaction_that_is_rolled_back_is_declared_again(
    app: Celery, caller_: Caller, seen: Seen, queue: str
):
    """The very first task of a queue is rolled back: the next one still finds its way."""
    caller_.order(1)
    caller_.send(lambda: app.send_task("ship"))
    caller_.rollback()
    app.send_task("after")

    assert seen.tasks == ["after"]
    with app.connection_for_read() as connection:
        bound = {(name, exchange) for name, exchange, _ in connection.default_channel.list_bindings()}
    assert (queue, queue) in bound


def test_a_savepoint_takes_back_what_was_sent_after_it(app: Celery, caller_: Caller, seen: Seen):
    caller_.order(1)
    caller_.send(lambda: app.send_task("kept"))
    caller_.execute("SAVEPOINT here")
    caller_.send(lambda: app.send_task("taken_back"))
    caller_.execute("ROLLBACK TO SAVEPOINT here")
    caller_.send(lambda: app.send_task("last"))
    caller_.commit()

    assert (seen.tasks, seen.orders) == (["kept", "last"], [1])


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_canvas_is_sent_whole_or_not_at_all(app: Celery, caller_: Caller, seen: Seen, ending: str):
    chords = seen.chords
    caller_.order(1)

    def send() -> None:
        chain(app.signature("first"), app.signature("second")).delay()
        group(app.signature("member", (each,)) for each in range(3)).delay()
        chord([app.signature("part", (each,)) for each in range(2)])(app.signature("body"))
        bulk_publish(app.signature("bulk", (each,)) for each in range(300))

    caller_.send(send)
    before = seen.tasks
    getattr(caller_, ending)()

    assert before == []
    expected = ["first", *["member"] * 3, *["part"] * 2, *["bulk"] * 300]
    assert seen.tasks == (expected if ending == "commit" else [])
    assert seen.chords == chords + (ending == "commit")


def test_the_transaction_remains_the_callers(app: Celery, caller_: Caller, seen: Seen):
    """The block ends nothing: neither by its end, nor by an error inside."""
    caller_.order(1)
    with pytest.raises(ZeroDivisionError):
        caller_.send(lambda: (app.send_task("ship"), 1 / 0))
    caller_.order(2)
    between = seen.tasks, seen.orders
    caller_.commit()

    assert between == ([], [])
    assert (seen.tasks, seen.orders) == (["ship"], [1, 2])


def test_a_result_that_cannot_come_is_not_waited_for(app: Celery, caller_: Caller):
    earlier = app.send_task("earlier")

    def send_and_wait() -> None:
        result = group(app.signature("ship"), app.signature("bill")).delay()
        with pytest.raises(RuntimeError, match="sent in one that is still open"):
            result.get(timeout=5)
        with pytest.raises(RuntimeError, match="sent in one that is still open"):
            app.send_task("other").get(timeout=5)
        assert not earlier.ready()

    caller_.send(send_and_wait)
    caller_.rollback()


def test_one_transaction_after_another_may_end_inside_the_block(app: Celery, kind: str, caller_: Caller, seen: Seen):
    """Each takes with it what was sent since the one before."""

    def send() -> None:
        result = app.send_task("first")
        caller_.commit()
        if not kind.endswith("-mysqldb"):  # That driver does not tell whether a transaction is open.
            with pytest.raises(CeleryTimeoutError):
                result.get(timeout=0.1)
        app.send_task("second")
        caller_.rollback()
        caller_.order(3)
        app.send_task("third")
        caller_.commit()

    if kind.endswith("async"):
        pytest.skip("who is async commits outside of the block, in which nothing is")
    caller_.order(1)
    caller_.send(send)

    assert (seen.tasks, seen.orders) == (["first", "third"], [1, 3])


@pytest.mark.parametrize("kind", ["sqlite-session", "postgresql-session", "mariadb-session"])
def test_who_only_inherits_the_block_sends_by_himself(app: Celery, caller_: Caller, seen: Seen):
    """An asyncio task or a thread that begins inside of it has its context, but must not use its connection."""

    async def later(name: str) -> None:
        await asyncio.sleep(0)
        app.send_task(name)

    async def send() -> None:
        with in_transaction(caller_.connection):
            app.send_task("inside")
            others = [asyncio.create_task(later("another")), asyncio.to_thread(app.send_task, "thread")]
            if "sqlite" in str(caller_.connection.get_bind().url):
                caller_.rollback()  # Nobody writes beside it there.
            await asyncio.gather(*others)
            straggler = asyncio.create_task(later("straggler"))
        await straggler

    asyncio.run(send())
    at_once = seen.tasks
    caller_.rollback()

    assert sorted(at_once) == ["another", "straggler", "thread"]
    assert sorted(seen.tasks) == sorted(at_once)


@pytest.mark.parametrize("kind", ["sqlite-session", "postgresql-sqlalchemy", "mariadb-sqlalchemy"])
def test_what_an_earlier_transaction_sent_may_be_waited_for_in_the_next(app: Celery, caller_: Caller):
    def send() -> None:
        earlier = app.send_task("earlier")
        caller_.commit()
        caller_.execute("SELECT 1")
        with pytest.raises(CeleryTimeoutError):
            earlier.get(timeout=0.1)
        app.send_task("later")
        with pytest.raises(CeleryTimeoutError):
            earlier.get(timeout=0.1)

    caller_.send(send)
    caller_.rollback()


def test_a_connection_of_another_database_is_refused(app: Celery, caller_: Caller, seen: Seen, tmp_path):
    """Nothing is sent then, neither there nor here."""
    elsewhere = sa.create_engine(f"sqlite:///{tmp_path}/elsewhere.db")
    with elsewhere.connect() as connection, in_transaction(connection):
        with pytest.raises(TransactionNotSupportedError, match="not one of the broker"):
            app.send_task("ship")
        with pytest.raises(TransactionNotSupportedError, match="not one of the broker"):
            group(app.signature("ship"), app.signature("bill")).delay()
    elsewhere.dispose()

    assert seen.tasks == []


@pytest.mark.parametrize("kind", ["sqlite-sqlite3", "postgresql-psycopg", "postgresql-psycopg2", "mariadb-pymysql"])
def test_a_connection_that_commits_each_statement_is_refused(app: Celery, caller_: Caller, seen: Seen):
    connection = caller_.connection
    if hasattr(connection, "isolation_level") and not hasattr(connection, "autocommit"):
        connection.isolation_level = None
    elif callable(getattr(connection, "autocommit", None)):
        connection.autocommit(True)
    else:
        connection.autocommit = True
    with pytest.raises(TransactionNotSupportedError, match="autocommit"):
        caller_.send(lambda: app.send_task("ship"))
    caller_.execute("BEGIN")
    caller_.send(lambda: app.send_task("ship"))
    before = seen.tasks
    caller_.execute("COMMIT")

    assert (before, seen.tasks) == ([], ["ship"])


@pytest.mark.parametrize("kind", ["sqlite-sqlalchemy", "postgresql-sqlalchemy", "mariadb-sqlalchemy"])
def test_an_engine_in_autocommit_is_refused(app: Celery, caller_: Caller):
    caller_.connection.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(TransactionNotSupportedError, match="commits each statement by itself"):
        caller_.send(lambda: app.send_task("ship"))


def test_what_cannot_be_written_on_is_refused():
    """With the way out."""
    from sqlalchemy.ext.asyncio import AsyncSession

    with pytest.raises(TransactionNotSupportedError, match="run_sync"), in_transaction(AsyncSession()):
        pass
    with pytest.raises(TransactionNotSupportedError, match="give a SQLAlchemy Session"), in_transaction("postgresql://"):
        pass


@pytest.mark.parametrize("kind", ["postgresql-sqlalchemy", "postgresql-psycopg", "mariadb-pymysql"])
def test_a_transaction_that_breaks_is_not_tried_again(app: Celery, caller_: Caller, seen: Seen, options: DatabaseOptions):
    """Kombu would repeat the publish alone, after what went with the transaction."""
    caller_.order(1)
    end_session(caller_, options)
    with pytest.raises(TransactionFailedError, match="roll the transaction back"):
        caller_.send(lambda: app.send_task("ship"))

    assert (seen.tasks, seen.orders) == ([], [])


def end_session(caller_: Caller, options: DatabaseOptions) -> None:
    """The server ends the session of the caller."""
    connection = caller_.connection
    database = Database(options)
    if hasattr(connection, "thread_id"):
        database.statement(lambda tx: tx.exec_driver_sql(f"KILL {connection.thread_id()}"))
    else:
        driver = getattr(connection, "connection", connection)
        pid = getattr(driver, "driver_connection", driver).info.backend_pid
        database.statement(lambda tx: tx.execute(select(sa.func.pg_terminate_backend(pid))))
    database.dispose()
