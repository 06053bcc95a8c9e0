"""What MariaDB and MySQL are asked for, how their sessions end, and what they cannot take."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, text, update
from sqlalchemy.engine import make_url

from kombu_sqlqueue.errors import ConfigurationError, MessageTooBigError, OutcomeUnknownError, StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.results import NewResult
from kombu_sqlqueue.sql import migrate
from kombu_sqlqueue.sql.admin import SQLAdmin
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.results import SQLResultStore

from ..databases import wipe
from ..proxy import Proxy
from .sending import claim, message, names, send
from .working import do_all_work

PAGE = Path(__file__).parents[2] / "docs" / "mysql.md"


@pytest.fixture(autouse=True)
def _only_mysql(database: Database) -> None:
    if database.dialect.name != "mysql":
        pytest.skip("about MariaDB and MySQL")


def asked(database: Database, question: str) -> object:
    return database.run(lambda tx: tx.scalar(text(question)))


def with_query(database: Database, **query: str) -> DatabaseOptions:
    """The database under test with this after the ? of its URL."""
    url = make_url(database.options.url).update_query_dict(query)
    return dataclasses.replace(database.options, url=url.render_as_string(hide_password=False))


# -- sessions -----------------------------------------------------------------------------


def test_certificates_that_nobody_looks_at_are_read_once(database: Database):
    """PyMySQL offers TLS without being asked, and would read those of the system for each connection."""
    with database.engine.connect() as one, database.engine.connect() as other:
        contexts = [getattr(each.connection.dbapi_connection, "ctx", None) for each in (one, other)]

    assert contexts[0] is contexts[1]


def test_transactions_are_read_committed(database: Database):
    """Under the server's default, REPEATABLE READ, they lock what is between rows, too."""
    lane = database.tables.lane
    with database.engine.begin() as tx:
        assert tx.scalar(select(lane.c.queue)) is None
        send(SQLMessageStore(database), "a", priority=3)
        assert tx.scalar(select(lane.c.queue)) == "q"


def test_a_server_that_cuts_what_is_too_long_may_not_do_so_here(database: Database):
    lenient = Database(with_query(database, init_command="SET SESSION sql_mode = ''"))
    with pytest.raises(MessageTooBigError, match="too long"):
        SQLMessageStore(lenient).publish([message(task="t" * 1000)])
    lenient.dispose()


def test_sessions_that_the_server_ended_are_not_noticed(database: Database, lessee: int, caplog: pytest.LogCaptureFixture):
    """As it does when they were idle for `wait_timeout`."""
    forgetful = Database(with_query(database, init_command="SET SESSION wait_timeout = 1"), clock=database.clock)
    store, results = SQLMessageStore(forgetful), SQLResultStore(forgetful)
    calls: list[Callable[[], object]] = [
        lambda: store.publish([message("a")]),
        lambda: claim(store, lessee),
        lambda: results.store(NewResult("id", "SUCCESS", b"{}")),
        lambda: in_a_transaction(forgetful),
        lambda: store.counts(),
    ]
    calls[0]()
    for call in calls:
        until_ended(forgetful)
        call()
    forgetful.dispose()

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def in_a_transaction(database: Database) -> None:
    with database.transaction():
        SQLResultStore(database).store(NewResult("id", "SUCCESS", b"{}"))


def until_ended(database: Database) -> None:
    """Wait until the server has ended the sessions of the database's pool."""
    driver = database.engine.raw_connection()
    session = driver.driver_connection.thread_id()
    driver.close()
    listed = text("SELECT count(*) FROM information_schema.processlist WHERE id = :session")
    other = Database(DatabaseOptions(database.options.url.partition("?")[0]))
    for _ in range(1000):
        if not other.statement(lambda tx: tx.scalar(listed, {"session": session})):
            break
        threading.Event().wait(0.02)
    other.dispose()


def test_a_session_in_use_is_not_asked_whether_it_lives(database: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kombu_sqlqueue.sql.mysql_connecting.MAY_BE_DEAD_AFTER", 60)
    pings = "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'COM_ADMIN_COMMANDS'"
    before = asked(database, pings)
    send(SQLMessageStore(database), "a")

    assert asked(database, pings) == before


# -- deadlocks ----------------------------------------------------------------------------


def test_a_deadlock_reaches_nobody(database: Database):
    """Two transactions change two rows in opposite order: the one that is undone is done again."""
    lane = database.tables.lane
    database.run(lambda tx: tx.execute(lane.insert(), [{"queue": queue, "priority": 0} for queue in "ab"]))
    each_has_one = threading.Barrier(2)
    tries = itertools.count(1)

    def change(first: str, second: str) -> int:
        def work(tx: Connection) -> int:
            mine = next(tries)
            tx.execute(update(lane).where(lane.c.queue == first).values(priority=lane.c.priority + 1))
            if mine <= 2:
                each_has_one.wait(timeout=20)
            tx.execute(update(lane).where(lane.c.queue == second).values(priority=lane.c.priority + 1))
            return mine

        return database.run(work)

    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(change, *order) for order in ("ab", "ba")]

    assert max(each.result() for each in done) == 3
    assert database.run(lambda tx: tx.scalars(select(lane.c.priority)).all()) == [2, 2]


# -- what is too big ----------------------------------------------------------------------


def test_what_is_larger_than_a_packet_is_refused_with_the_setting_to_raise(database: Database, lessee: int):
    store = SQLMessageStore(database)
    limit = int(str(asked(database, "SELECT @@max_allowed_packet")))
    with pytest.raises(MessageTooBigError, match=rf"max_allowed_packet, which is {limit}"):
        store.publish([dataclasses.replace(message(), body=b"x" * limit)])
    with pytest.raises(MessageTooBigError):
        SQLResultStore(database).store(NewResult("id", "SUCCESS", b"x" * limit))
    send(store, "a")

    assert names(claim(store, lessee)) == ["a"]


def test_a_message_of_megabytes_comes_back_whole(database: Database, lessee: int):
    store = SQLMessageStore(database)
    body = bytes(range(256)) * 12_000
    store.publish([dataclasses.replace(message(), body=body, envelope="ü\\'\"\0€😀" * 100_000)])
    (delivery,) = claim(store, lessee)

    assert delivery.body == body
    assert delivery.envelope == "ü\\'\"\0€😀" * 100_000


# -- lines that break ---------------------------------------------------------------------


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    url = make_url(database.options.url)
    with Proxy((url.host or "127.0.0.1", url.port or 3306)) as proxy:
        yield proxy


@pytest.fixture
def through(database: Database, proxy: Proxy) -> Iterator[SQLMessageStore]:
    """The store, reached through a line that breaks when told to."""
    url = make_url(database.options.url).set(host="127.0.0.1", port=proxy.port)
    distant = Database(DatabaseOptions(url.render_as_string(hide_password=False)), clock=database.clock)
    yield SQLMessageStore(distant)
    distant.dispose()


def test_a_line_that_broke_before_the_commit_is_no_trouble(
    store: SQLMessageStore, through: SQLMessageStore, proxy: Proxy, lessee: int
):
    through.publish([message("a")])
    proxy.break_at(b"INSERT INTO")
    through.publish([message("b")])

    assert proxy.broken == 1
    assert names(claim(store, lessee)) == ["a", "b"]


@pytest.mark.parametrize("answered", [True, False])
def test_a_line_that_broke_at_the_commit_leaves_the_outcome_unknown(
    store: SQLMessageStore, through: SQLMessageStore, proxy: Proxy, lessee: int, answered: bool
):
    """The server cannot be asked what became of a transaction."""
    through.publish([message("a")])
    proxy.break_at(b"\x03COMMIT", answered=answered)
    with pytest.raises(OutcomeUnknownError):
        through.publish([message("b")])

    assert names(claim(store, lessee)) == (["a", "b"] if answered else ["a"])


def test_a_claim_whose_commit_broke_is_made_again(
    store: SQLMessageStore, through: SQLMessageStore, proxy: Proxy, lessee: int
):
    through.publish([message("a"), message("b")])
    proxy.break_at(b"\x03COMMIT")

    assert names(claim(through, lessee)) == ["a", "b"]
    assert proxy.broken == 1


# -- waking -------------------------------------------------------------------------------


def test_who_waits_hears_which_queues_got_messages(database: Database, store: SQLMessageStore):
    waker = database.waker()
    assert waker is not None
    assert waker.wait(10) is None
    store.publish([message(queue="one"), message(queue="two")])

    heard: set[str] = set()
    while len(heard) < 2:
        heard |= set(waker.wait(10) or ())
    assert heard == {"queue:one", "queue:two"}
    waker.close()


def test_who_waits_hears_of_a_lost_line_and_gets_a_new_one(database: Database, store: SQLMessageStore):
    waker = database.waker()
    assert waker is not None
    waker.wait(10)
    session = waker._connection.connection.dbapi_connection.thread_id()
    database.statement(lambda tx: tx.exec_driver_sql(f"KILL {session}"))

    with pytest.raises(StoreUnavailableError, match="looks for messages is gone"):
        waker.wait(10)
    assert waker.wait(10) is None
    send(store, "a")
    assert waker.wait(10) == {"queue:q"}
    waker.close()


# -- rights -------------------------------------------------------------------------------


@pytest.fixture
def as_user(database: Database) -> Iterator[Callable[[str], Database]]:
    """The database under test, seen by a new user with the rights given by SQL, `USER` for its name."""
    made: list[tuple[str, Database]] = []
    schema = make_url(database.options.url).database

    def act(sql: str) -> Database:
        user = f"sqlqueue_{uuid.uuid4().hex[:8]}"
        statements = [f"CREATE USER {user}@'%' IDENTIFIED BY 'secret'"]
        statements += [each.replace("USER", f"{user}@'%'").replace("DATABASE", f"{schema}") for each in sql.split(";")]
        for statement in filter(str.strip, statements):
            database.statement(lambda tx, statement=statement: tx.exec_driver_sql(statement.replace("%", "%%")))
        url = make_url(database.options.url).set(username=user, password="secret")
        limited = dataclasses.replace(database.options, url=url.render_as_string(hide_password=False))
        made.append((user, Database(limited, clock=database.clock)))
        return made[-1][1]

    yield act
    for user, limited in made:
        limited.dispose()
        database.statement(lambda tx, user=user: tx.exec_driver_sql(f"DROP USER {user}@'%%'"))


def documented_grants(user: str) -> str:
    found = re.findall(rf"^GRANT [^;]* TO {user}@'%';", PAGE.read_text(), re.MULTILINE)
    assert found
    return "".join(found).replace(f"{user}@'%'", "USER").replace("mydb", "DATABASE")


def test_the_working_user_can_do_all_work(as_user: Callable[[str], Database]):
    database = as_user(documented_grants("sqlqueue_app"))
    migrate.ensure(database)
    do_all_work(database)
    wipe(database)


def test_the_owner_can_migrate(as_user: Callable[[str], Database]):
    database = as_user(documented_grants("sqlqueue_owner"))
    elsewhere = Database(dataclasses.replace(database.options, table_prefix="mine_"))
    migrate.upgrade(elsewhere)
    elsewhere.run(elsewhere.tables.metadata.drop_all)
    elsewhere.run(lambda tx: tx.exec_driver_sql("DROP TABLE mine_version"))
    elsewhere.dispose()


def test_a_user_that_may_only_look_can_look(as_user: Callable[[str], Database]):
    database = as_user("GRANT SELECT ON DATABASE.* TO USER")
    SQLMessageStore(database).counts()
    SQLAdmin(database).oldest_ready()
    SQLAdmin(database).dead(limit=1)

    assert migrate.check(database).usable


def test_a_missing_right_is_named_with_the_page_that_lists_it(as_user: Callable[[str], Database]):
    database = as_user("GRANT SELECT ON DATABASE.* TO USER")
    with pytest.raises(ConfigurationError, match=r"INSERT command denied .*docs/security\.md"):
        SQLMessageStore(database).publish([message()])


def test_a_wrong_password_is_named_and_not_shown(database: Database):
    url = make_url(database.options.url).set(username="nobody", password="secret")
    stranger = Database(DatabaseOptions(url.render_as_string(hide_password=False)))
    with pytest.raises(StoreUnavailableError, match="Access denied for user") as caught:
        stranger.ping()
    assert "secret" not in str(caught.value)
