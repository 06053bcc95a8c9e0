"""The tables of schedules: a line of migrations of their own beside that of the queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text, update

from celery_workflow import workflow
from celery_workflow.runs import advancing
from celery_workflow.runs.runtime import runtime_of
from celery_workflow.sql.migrate import HEAD, line
from celery_workflow.sql.migrations.versions import __name__ as versions
from celery_workflow.sql.schema import TIMING, Tables
from kombu_sqlqueue.errors import SchemaError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql import migrate
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.migrate import Fit

from ..celery.workers import eventually
from .apps import app_on

PREFIX = "freshwf_"


class Fresh:
    """A place without tables of schedules, beside those of the queue."""

    def __init__(self, options: DatabaseOptions) -> None:
        self.database = Database(options)
        self.line = line(PREFIX)
        self.tables = Tables(PREFIX, options.schema)

    def pretend(self, version: str, *, min_client: int = 1) -> None:
        """Let the tables say that they are of another release."""
        version_table = migrate._version(self.database, self.line)
        write = [
            update(version_table).values(version_num=version),
            update(self.tables.release).values(min_client=min_client),
        ]
        self.database.run(lambda tx: [tx.execute(statement) for statement in write])

    def drop(self, tx: Connection) -> None:
        self.tables.metadata.drop_all(tx)
        migrate._version(self.database, self.line).drop(tx, checkfirst=True)
        if tx.dialect.name == "postgresql":
            schema = self.database.options.schema
            tx.execute(text(f"DROP FUNCTION IF EXISTS {schema}.{PREFIX}schedule_changed() CASCADE"))


@pytest.fixture
def fresh(database_options: DatabaseOptions) -> Iterator[Fresh]:
    fresh = Fresh(database_options)
    yield fresh
    fresh.database.run(fresh.drop)
    fresh.database.dispose()


def test_the_lines_know_nothing_of_each_other(fresh: Fresh):
    assert migrate.check(fresh.database).fit is Fit.CURRENT
    assert migrate.check(fresh.database, fresh.line).fit is Fit.MISSING
    migrate.upgrade(fresh.database, fresh.line)
    migrate.upgrade(fresh.database, fresh.line)

    assert migrate.check(fresh.database, fresh.line).fit is Fit.CURRENT
    assert migrate.check(fresh.database).fit is Fit.CURRENT


def test_the_number_of_the_last_migration_is_what_this_release_asks_for():
    assert ScriptDirectory(str(line(PREFIX).migrations)).get_heads() == [HEAD]


def test_migrations_make_the_tables_that_the_store_expects(fresh: Fresh):
    """Alembic's own comparison of models and database finds no difference."""
    migrate.upgrade(fresh.database, fresh.line)
    of = fresh.database.options

    def compare(connection: Connection) -> list[Any]:
        ours = {
            "version_table": f"{PREFIX}version",
            "version_table_schema": of.schema,
            "include_schemas": True,
            "include_name": lambda name, kind, _: (
                (kind != "schema" or name == of.schema) and (kind != "table" or name.startswith(PREFIX))
            ),
        }
        return compare_metadata(MigrationContext.configure(connection, opts=ours), fresh.tables.metadata)

    assert fresh.database.statement(compare) == []


def test_the_triggers_watch_what_the_store_takes_for_timing():
    import importlib

    assert importlib.import_module(f"{versions}.0001_schedules").TIMING == TIMING


def test_older_tables_are_refused_with_the_command_that_migrates_them(fresh: Fresh):
    if fresh.database.dialect.migrates_itself:
        pytest.skip("here they are migrated")
    with pytest.raises(SchemaError, match="celery -A YOUR_APP workflow migrate"):
        migrate.ensure(fresh.database, fresh.line)
    migrate.upgrade(fresh.database, fresh.line)
    migrate.ensure(fresh.database, fresh.line)


def test_a_worker_that_has_workflows_says_once_that_there_are_no_tables(
    database_options: DatabaseOptions, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(advancing, "LOOK_FOR_TABLES", 0.01)
    app = app_on(database_options)
    app.conf.workflow_table_prefix = PREFIX
    advancer = advancing.Advancer(runtime_of(app))

    with caplog.at_level(logging.DEBUG, "celery_workflow.runs.advancing"):
        advancer.start()
        eventually(lambda: len(caplog.messages) > 2)
        assert {record.levelname for record in caplog.records} == {"DEBUG"}

        workflow(app, name="fresh")(lambda w: None)
        said = len(caplog.messages)
        eventually(lambda: len(caplog.messages) > said + 2)
        advancer.stop()

    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    by_themselves = process_for(database_options).database.dialect.migrates_itself
    assert ["celery -A YOUR_APP workflow migrate" in said for said in warnings] == ([] if by_themselves else [True])
    app.close()


def test_newer_tables_are_fine_while_they_serve_clients_as_old_as_this(fresh: Fresh):
    migrate.upgrade(fresh.database, fresh.line)
    fresh.pretend("0009", min_client=1)
    assert migrate.check(fresh.database, fresh.line).fit is Fit.NEWER
    fresh.pretend("0009", min_client=9)
    assert migrate.check(fresh.database, fresh.line).fit is Fit.TOO_NEW


def test_the_sql_can_be_run_by_other_means(fresh: Fresh):
    """As `celery workflow migrate --sql` prints it."""
    if fresh.database.dialect.name != "postgresql":
        pytest.skip("one server's client is enough")
    script = migrate.script(fresh.database, fresh.line)
    fresh.database.run(lambda tx: tx.connection.driver_connection.execute(script))

    assert migrate.check(fresh.database, fresh.line).fit is Fit.CURRENT
    assert fresh.database.statement(lambda tx: inspect(tx).has_table(f"{PREFIX}schedule", fresh.database.options.schema))
