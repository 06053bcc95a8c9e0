"""The `celery sqlqueue` commands, as an operator types them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from kombu_sqlqueue.commands import sqlqueue
from kombu_sqlqueue.messages import Delivery, NewMessage, Reason
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .databases import requires

MINUTE = timedelta(minutes=1)

Run = Callable[..., Result]


@pytest.fixture
def app(database: Database) -> Iterator[Celery]:
    """An app on the database under test, as a user would configure it."""
    with app_on(database) as app:
        yield app


@pytest.fixture
def run(app: Celery) -> Run:
    return runner(app)


@pytest.fixture
def store(database: Database) -> SQLMessageStore:
    return SQLMessageStore(database)


def app_on(database: Database, **changes: Any) -> Celery:
    of = database.options
    options = {"table_prefix": of.table_prefix, "schema": of.schema, **changes}
    app = Celery("operated", set_as_current=False, broker=f"sqlqueue+{of.url}", backend=f"sqlqueue+{of.url}")
    app.conf.broker_transport_options = options
    app.conf.result_backend_transport_options = options
    return app


def runner(app: Celery) -> Run:
    """Runs a command as `celery -A app sqlqueue …` does."""
    return lambda *arguments: CliRunner().invoke(sqlqueue, arguments, obj=SimpleNamespace(app=app))


def publish(store: SQLMessageStore, queue: str, count: int = 1, **fields: Any) -> None:
    store.publish([NewMessage(queue, b"x", "{}", **fields) for _ in range(count)])


def claim(store: SQLMessageStore, queue: str, count: int = 1) -> list[Delivery]:
    return store.claim([queue], limit=count, lessee=store.enrol("worker:1", lease_for=MINUTE))


def bury(store: SQLMessageStore, queue: str, count: int = 1, **fields: Any) -> list[int]:
    """Publish messages and let them die; the answer is their ids."""
    publish(store, queue, count, **fields)
    leases = [delivery.lease for delivery in claim(store, queue, count)]
    for lease in leases:
        store.bury(lease, Reason.REJECTED)
    return [lease.message_id for lease in leases]


def test_check_says_that_the_tables_fit(run: Run):
    done = run("check")

    assert done.exit_code == 0
    assert "the tables are at schema" in done.output


def test_check_fails_where_the_tables_are_missing(database: Database):
    with app_on(database, table_prefix="nothing_") as app:
        done = runner(app)("check")

    assert done.exit_code == 1
    assert "the tables are missing" in done.output


def test_migrate_makes_the_tables_of_broker_and_result_backend(database: Database):
    with app_on(database, table_prefix="made_") as app:
        app.conf.result_backend_transport_options = app.conf.result_backend_transport_options | {"table_prefix": "results_"}
        done = runner(app)("migrate")

        assert done.exit_code == 0
        assert done.output.count("as this release needs") == 2
        assert runner(app)("check").exit_code == 0
        assert runner(app)("migrate").output == done.output


def test_migrate_with_sql_prints_and_changes_nothing(database: Database):
    with app_on(database, table_prefix="printed_") as app:
        done = runner(app)("migrate", "--sql")

        assert done.exit_code == 0
        assert "CREATE TABLE" in done.output
        assert done.output.count("CREATE TABLE") == len(database.tables.metadata.tables) + 1, "one database is one script"
        assert runner(app)("check").exit_code == 1


def test_migrate_with_sql_prints_nothing_where_nothing_is_to_do(run: Run):
    assert run("migrate", "--sql").output == ""


def test_stats_counts_each_queue(run: Run, store: SQLMessageStore):
    publish(store, "letters", 3)
    publish(store, "letters", due_at=4_000_000_000_000_000)
    claim(store, "letters")
    bury(store, "parcels")

    assert [line.split()[:-1] for line in run("stats").output.splitlines()] == [
        ["queue", "ready", "delayed", "leased", "started", "dead"],
        ["letters", "2", "1", "1", "0", "0"],
        ["parcels", "0", "0", "0", "0", "1"],
    ]


def test_stats_tells_how_old_the_oldest_ready_message_is(run: Run, store: SQLMessageStore):
    publish(store, "letters")
    bury(store, "parcels")
    letters, parcels = json.loads(run("stats", "--json").output)

    assert letters["oldest"] > 0
    assert parcels["oldest"] is None


def test_stats_of_nothing(run: Run):
    assert run("stats").output == "no messages\n"
    assert json.loads(run("stats", "--json").output) == []


def test_dead_lists_the_latest_first(run: Run, store: SQLMessageStore):
    first, second = bury(store, "q", 2, task_id="some-id", task="proj.tasks.add")
    lines = run("dead", "--limit", "5").output.splitlines()

    assert {lines[1].split()[0], lines[2].split()[0]} == {str(first), str(second)}
    assert "proj.tasks.add" in lines[1]
    assert "rejected" in lines[1]


def test_dead_of_one_queue(run: Run, store: SQLMessageStore):
    bury(store, "a")
    (wanted,) = bury(store, "b")

    assert [row["id"] for row in json.loads(run("dead", "-Q", "b", "--json").output)] == [wanted]
    assert run("dead", "-Q", "c").output == "no dead messages\n"


def test_redrive_makes_the_named_ones_ready(run: Run, store: SQLMessageStore):
    first, second = bury(store, "q", 2)
    done = run("redrive", str(first))

    assert done.output == "1 messages are ready again\n"
    assert [delivery.lease.message_id for delivery in claim(store, "q", 2)] == [first]
    assert second in [row["id"] for row in json.loads(run("dead", "--json").output)]


def test_redrive_of_a_queue(run: Run, store: SQLMessageStore):
    bury(store, "a", 3)
    bury(store, "b")

    assert run("redrive", "-Q", "a").output == "3 messages are ready again\n"
    assert len(claim(store, "a", 10)) == 3
    assert claim(store, "b") == []


@pytest.mark.parametrize("arguments", [(), ("7", "-Q", "q")])
def test_redrive_wants_ids_or_a_queue(run: Run, arguments: tuple[str, ...]):
    done = run("redrive", *arguments)

    assert done.exit_code == 2
    assert "either" in done.output


@pytest.mark.parametrize("command", ["stats", "dead", "redrive"])
def test_looking_at_missing_tables_names_the_command_to_run(database: Database, command: str):
    arguments = ["1"] if command == "redrive" else []
    with app_on(database, table_prefix="nothing_") as app:
        done = runner(app)(command, *arguments)

    assert done.exit_code == 1
    assert "sqlqueue migrate" in done.output


@pytest.mark.parametrize("command", ["migrate", "check", "stats", "dead"])
def test_another_broker_is_named_as_the_trouble(command: str):
    with Celery("other", set_as_current=False, broker="memory://") as app:
        done = runner(app)(command)

    assert done.exit_code == 1
    assert "-A YOUR_APP or --broker URL" in done.output


@pytest.fixture
def elsewhere(database: Database) -> Iterator[Run]:
    """Runs commands for an app with a broker of another kind and an outbox on the database under test."""
    with Celery("elsewhere", set_as_current=False, broker="memory://") as app:
        app.conf.sqlqueue_outbox = f"sqlqueue+{database.options.url}"
        app.conf.sqlqueue_outbox_options = {"schema": database.options.schema}
        yield runner(app)


def test_with_another_broker_the_outbox_is_looked_after(elsewhere: Run, store: SQLMessageStore):
    publish(store, "sqlqueue.outbox", 2)
    (dead,) = bury(store, "sqlqueue.outbox")

    assert elsewhere("migrate").output.count("as this release needs") == 1
    assert elsewhere("check").exit_code == 0
    assert elsewhere("stats").output.splitlines()[1].split()[:2] == ["sqlqueue.outbox", "2"]
    assert elsewhere("dead").output.splitlines()[1].split()[0] == str(dead)
    assert elsewhere("redrive", str(dead)).output == "1 messages are ready again\n"


def test_a_relay_needs_an_outbox():
    with Celery("other", set_as_current=False, broker="memory://") as app:
        done = runner(app)("relay", "--once")

    assert done.exit_code == 1
    assert "set sqlqueue_outbox" in done.output


def test_a_relay_to_a_broker_of_ours_is_refused(app: Celery, database: Database):
    """What is sent in a transaction is in the broker's tables already."""
    app.conf.sqlqueue_outbox = f"sqlqueue+{database.options.url}"
    done = runner(app)("relay", "--once")

    assert done.exit_code == 1
    assert "needs no outbox" in done.output


@requires(Capability.CONCURRENT_WRITERS)
def test_a_relay_that_finds_no_tables_names_the_command_to_run(database: Database):
    with Celery("other", set_as_current=False, broker="memory://") as app:
        app.conf.sqlqueue_outbox = f"sqlqueue+{database.options.url}"
        app.conf.sqlqueue_outbox_options = {"schema": database.options.schema, "table_prefix": "nothing_"}
        done = runner(app)("relay", "--once")

    assert done.exit_code == 1
    assert "sqlqueue migrate" in done.output


def test_no_password_is_shown():
    """Neither when all is well nor when the server is away."""
    away = "sqlqueue+postgresql://someone:hunter2@127.0.0.1:1/nowhere"
    with Celery("away", set_as_current=False, broker=away, backend=away) as app:
        done = runner(app)("check")

    assert done.exit_code == 1
    assert "127.0.0.1" in done.output
    assert "hunter2" not in done.output


def test_with_a_url_alone(tmp_path: Path):
    """No app: the whole command line, in a process of its own."""
    command = [sys.executable, "-m", "celery", "--broker", f"sqlqueue+sqlite:///{tmp_path}/queue.db", "sqlqueue"]
    migrated = subprocess.run([*command, "migrate"], cwd=tmp_path, check=False, text=True, capture_output=True, timeout=60)
    checked = subprocess.run([*command, "check"], cwd=tmp_path, check=False, text=True, capture_output=True, timeout=60)

    assert (migrated.returncode, checked.returncode) == (0, 0), migrated.stderr + checked.stderr
    assert checked.stdout == migrated.stdout
