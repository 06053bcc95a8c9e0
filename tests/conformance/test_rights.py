"""The roles that docs/security.md describes can do their work, and others are told what they lack."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, select
from sqlalchemy.engine import make_url

from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.results import NewResult
from kombu_sqlqueue.revoking import Revocation
from kombu_sqlqueue.routing import Binding, Exchange, Kind, Queue
from kombu_sqlqueue.sql import migrate
from kombu_sqlqueue.sql.admin import SQLAdmin
from kombu_sqlqueue.sql.chords import SQLChordStore
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.migrate import Fit
from kombu_sqlqueue.sql.results import SQLResultStore
from kombu_sqlqueue.sql.revocations import SQLRevocationStore
from kombu_sqlqueue.sql.routing import SQLRoutingStore
from kombu_sqlqueue.sql.waiters import SQLWaiters

from .working import do_all_work

pytestmark = pytest.mark.requires(Capability.LISTEN_NOTIFY)

PAGE = Path(__file__).parents[2] / "docs" / "security.md"

As = Callable[[str], Database]


@pytest.fixture
def as_role(database: Database) -> Iterator[As]:
    """The database under test, seen by a new role with the rights given by SQL, `ROLE` for its name."""
    schema = database.options.schema
    made: list[tuple[str, Database]] = []

    def act(sql: str) -> Database:
        role = f"sqlqueue_{uuid.uuid4().hex[:8]}"
        statements = [
            f"CREATE ROLE {role}",
            f"GRANT USAGE ON SCHEMA {schema} TO {role}",
            f"SET LOCAL search_path TO {schema}",
        ]
        statements += [each.replace("ROLE", role) for each in sql.split(";") if each.strip()]
        execute(database, statements)
        url = make_url(database.options.url).update_query_dict({"options": f"-c role={role}"})
        limited = dataclasses.replace(database.options, url=url.render_as_string(hide_password=False))
        made.append((role, Database(limited, clock=database.clock)))
        return made[-1][1]

    yield act
    for role, limited in made:
        limited.dispose()
        execute(database, [f"DROP OWNED BY {role}", f"DROP ROLE {role}"])


def execute(database: Database, statements: list[str]) -> None:
    def work(tx: Connection) -> None:
        for statement in statements:
            tx.exec_driver_sql(statement)

    database.run(work)


def documented_grants(role: str) -> str:
    """What the page grants to a role on the queue's tables and sequences, to `ROLE` instead."""
    found = re.findall(rf"^GRANT [^;]*\bsqlqueue_[^;]* TO {role};", PAGE.read_text(), re.MULTILINE)
    assert found
    return "".join(found).replace(role, "ROLE")


def test_the_working_role_can_do_all_work(as_role: As):
    database = as_role(documented_grants("sqlqueue_app"))
    migrate.ensure(database)
    do_all_work(database)


def test_the_producing_role_can_send_and_read_results_and_nothing_more(as_role: As, store: SQLMessageStore):
    """Not a message of others, nor claim one, nor write a result."""
    database = as_role(documented_grants("sqlqueue_producer"))
    migrate.ensure(database)
    routing = SQLRoutingStore(database)
    messages, results = SQLMessageStore(database), SQLResultStore(database)
    routing.declare_exchange(Exchange("x", Kind.DIRECT))
    routing.declare_queue(Queue("q"))
    routing.bind(Binding("x", "q", "key"))
    messages.publish([NewMessage("q", b"x", "{}", priority=priority) for priority in (0, 3)])
    messages.publish([NewMessage("q", b"x", "{}", due_at=1)])
    SQLResultStore(store._work._database).store(NewResult("id", "SUCCESS", b"{}", expires_in=None))
    assert [result.task_id for result in results.fetch(["id"])] == ["id"]
    results.save_group("group", b"{}", expires_in=None)
    assert results.group("group") == b"{}"
    SQLChordStore(database).open("chord", header=None, expires_in=None)
    SQLChordStore(database).set_size("chord", 2, expires_in=None)
    SQLRevocationStore(database).revoke([Revocation("id")])
    SQLWaiters(database).arm("me", ["result"], armed_for=timedelta(minutes=1))
    SQLWaiters(database).disarm("me")

    assert database.waker().wait(1) is None
    for forbidden in (
        lambda: messages.enrol("one", lease_for=timedelta(minutes=1)),
        lambda: results.store(NewResult("id", "FAILURE", b"{}", expires_in=None)),
        lambda: messages.purge("q"),
        lambda: SQLAdmin(database).dead(limit=1),
        lambda: database.statement(lambda tx: tx.execute(select(database.tables.message.c.body))),
    ):
        with pytest.raises(ConfigurationError, match="permission denied"):
            forbidden()


def test_a_role_that_may_only_look_can_look(as_role: As, database_options: DatabaseOptions):
    database = as_role(documented_grants("sqlqueue_monitor"))
    SQLMessageStore(database).counts()
    SQLAdmin(database).oldest_ready()
    SQLAdmin(database).dead(limit=1)

    assert migrate.check(database).fit is Fit.CURRENT


def test_a_missing_right_is_named_with_the_page_that_lists_it(as_role: As):
    database = as_role("")
    with pytest.raises(ConfigurationError, match=r"permission denied for .*docs/security\.md"):
        SQLMessageStore(database).publish([NewMessage("q", b"x", "{}")])


def test_a_role_that_may_not_create_tables_cannot_migrate(as_role: As):
    database = as_role("")
    elsewhere = Database(dataclasses.replace(database.options, table_prefix="mine_"))
    with pytest.raises(ConfigurationError, match="permission denied for schema"):
        migrate.upgrade(elsewhere)
    elsewhere.dispose()
