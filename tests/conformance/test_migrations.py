"""Making the tables, checking them, and getting on with those of other releases."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, delete, inspect, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import DropIndex, DropSchema

from kombu_sqlqueue.errors import SchemaError
from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql import migrate
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.migrate import Fit, Standing

from ..databases import requires

PREFIX = "fresh_"
NEXT = f"{int(migrate.HEAD) + 1:04}"

MIGRATE_AND_PUBLISH = """
import os, sys
import alembic.command
from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.migrate import ensure

url, prefix, schema, processes = sys.argv[1:]
gate, held = os.pipe()
for _ in range(int(processes)):
    if not os.fork():
        os.close(held)
        os.read(gate, 1)  # until the last of them is there
        database = Database(DatabaseOptions(url, table_prefix=prefix, schema=schema or None, auto_migrate=True))
        ensure(database)
        SQLMessageStore(database).publish([NewMessage("q", b"x", "{}")])
        sys.exit()
os.close(held)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(int(processes))])
"""


@pytest.fixture
def fresh(database_options: DatabaseOptions) -> Iterator[Database]:
    """A place without tables: another prefix in the database under test."""
    with opened(database_options, table_prefix=PREFIX) as fresh:
        yield fresh


class opened:
    """A database with some options changed, its tables dropped at the end."""

    def __init__(self, options: DatabaseOptions, **changes: Any) -> None:
        self.database = Database(dataclasses.replace(options, **changes))

    def __enter__(self) -> Database:
        return self.database

    def __exit__(self, *exc: object) -> None:
        self.database.run(self._drop)
        self.database.dispose()

    def _drop(self, tx: Connection) -> None:
        self.database.tables.metadata.drop_all(tx)
        version_table(self.database).drop(tx, checkfirst=True)


def version_table(database: Database) -> Table:
    of = database.options
    return Table(f"{of.table_prefix}version", MetaData(schema=of.schema), Column("version_num"))


def pretend(database: Database, version: str, *, min_client: int = 1) -> None:
    """Let the tables say that they are of another release."""

    def write(tx: Connection) -> None:
        tx.execute(update(version_table(database)).values(version_num=version))
        tx.execute(update(database.tables.release).values(min_client=min_client))

    database.run(write)


def counts(database: Database) -> int:
    return sum(each.ready for each in SQLMessageStore(database).counts())


def test_a_place_without_tables_says_so(fresh):
    assert migrate.check(fresh) == Standing(None)
    assert migrate.check(fresh).fit is Fit.MISSING


def test_upgrade_makes_what_is_missing(fresh):
    migrate.upgrade(fresh)

    assert migrate.check(fresh).fit is Fit.CURRENT
    assert migrate.current(fresh) == migrate.HEAD


def test_upgrade_of_current_tables_changes_nothing(fresh):
    migrate.upgrade(fresh)
    SQLMessageStore(fresh).publish([NewMessage("q", b"x", "{}")])
    migrate.upgrade(fresh)

    assert counts(fresh) == 1


def test_the_number_of_the_last_migration_is_what_this_release_asks_for():
    scripts = ScriptDirectory(str(migrate.QUEUE.migrations))

    assert scripts.get_heads() == [migrate.HEAD]
    assert all(revision.revision.isdecimal() for revision in scripts.walk_revisions())


def test_migrations_make_the_tables_that_the_stores_expect(fresh):
    """Alembic's own comparison of models and database finds no difference."""
    migrate.upgrade(fresh)
    of = fresh.options

    def compare(connection: Connection) -> list[Any]:
        ours = {
            "version_table": f"{of.table_prefix}version",
            "version_table_schema": of.schema,
            "include_schemas": True,
            "include_name": lambda name, kind, _: (
                (kind != "schema" or name == of.schema) and (kind != "table" or name.startswith(of.table_prefix))
            ),
        }
        return compare_metadata(MigrationContext.configure(connection, opts=ours), fresh.tables.metadata)

    assert fresh.statement(compare) == []


def test_migrations_make_indexes_and_storage_as_the_models_say(fresh):
    """What Alembic does not compare: the conditions of indexes, fillfactor, vacuum settings, sequences."""
    migrate.upgrade(fresh)
    with opened(fresh.options, table_prefix="model_") as models:
        models.run(models.tables.metadata.create_all)

        assert len(details(fresh)) > len(fresh.tables.metadata.tables)
        assert details(fresh) == details(models)


def test_eight_processes_may_find_a_place_without_tables_at_once(fresh):
    """All of them succeed, and each stores its message."""
    of = fresh.options
    command = [sys.executable, "-c", MIGRATE_AND_PUBLISH, of.url, of.table_prefix, of.schema or "", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == f"{[0] * 8}\n", done.stderr
    assert counts(fresh) == 8


@requires(Capability.TRANSACTIONAL_DDL)
def test_a_migration_that_fails_leaves_nothing_behind(fresh, database):
    """Someone else's table is in the way: the transaction is undone whole, and what is theirs stays."""
    theirs = Table(f"{PREFIX}result", MetaData(schema=fresh.options.schema), Column("mine", BigInteger))
    fresh.run(theirs.create)

    with pytest.raises(DBAPIError):
        migrate.upgrade(fresh)
    names = fresh.statement(lambda c: inspect(c).get_table_names(schema=fresh.options.schema))
    assert [name for name in names if name.startswith(PREFIX)] == [theirs.name]
    fresh.run(theirs.drop)


def test_a_migration_that_broke_off_goes_on_where_it_was(fresh):
    """Where nothing is undone, what was made before is as good as new."""
    if Capability.TRANSACTIONAL_DDL in fresh.dialect.capabilities:
        pytest.skip("here it is undone")
    migrate.upgrade(fresh)
    whole = details(fresh)
    fresh.run(lambda tx: tx.execute(delete(version_table(fresh))))
    fresh.run(lambda tx: tx.execute(delete(fresh.tables.release)))
    fresh.run(fresh.tables.chord.drop)
    fresh.run(lambda tx: tx.execute(DropIndex(next(iter(fresh.tables.dead.indexes)))))
    assert details(fresh) != whole
    migrate.upgrade(fresh)

    assert migrate.check(fresh).fit is Fit.CURRENT
    assert details(fresh) == whole


def test_a_table_of_someone_else_is_not_taken_for_ours(fresh):
    theirs = Table(f"{PREFIX}result", MetaData(schema=fresh.options.schema), Column("mine", BigInteger))
    fresh.run(theirs.create)

    with pytest.raises(DBAPIError, match="exists"):
        migrate.upgrade(fresh)
    assert migrate.check(fresh).fit is Fit.MISSING
    fresh.run(theirs.drop)


def test_the_script_does_what_upgrade_does(fresh):
    statements = [each.strip() for each in migrate.script(fresh).split(";") if each.strip()]
    assert migrate.check(fresh).fit is Fit.MISSING
    fresh.run(lambda tx: [tx.exec_driver_sql(each).close() for each in statements if each not in ("BEGIN", "COMMIT")])

    assert migrate.check(fresh).fit is Fit.CURRENT
    assert migrate.script(fresh) == ""


def test_the_apps_own_alembic_is_left_alone(fresh):
    own = Table("alembic_version", MetaData(schema=fresh.options.schema), Column("version_num", BigInteger))
    fresh.run(own.create)
    try:
        fresh.run(lambda tx: tx.execute(own.insert().values(version_num=7)))
        migrate.upgrade(fresh)

        assert fresh.run(lambda tx: tx.scalars(select(own.c.version_num)).all()) == [7]
    finally:
        fresh.run(own.drop)


def test_older_tables_are_refused_where_nobody_may_alter_them(fresh):
    """The error names the command to run."""
    migrate.upgrade(fresh)
    pretend(fresh, "0000")

    assert migrate.check(fresh).fit is Fit.OLDER
    if not fresh.dialect.migrates_itself:
        with pytest.raises(SchemaError, match=r"at schema 0000, this release needs .* sqlqueue migrate"):
            migrate.ensure(fresh)


def test_missing_tables_are_refused_where_nobody_may_make_them(fresh):
    if fresh.dialect.migrates_itself:
        migrate.ensure(fresh)
        assert migrate.check(fresh).fit is Fit.CURRENT
    else:
        with pytest.raises(SchemaError, match=r"missing .* sqlqueue migrate"):
            migrate.ensure(fresh)


def test_with_auto_migrate_the_first_use_makes_the_tables(fresh):
    with opened(fresh.options, auto_migrate=True) as automatic:
        migrate.ensure(automatic)

        assert migrate.check(automatic).fit is Fit.CURRENT


def test_newer_tables_are_fine_while_they_serve_clients_as_old_as_this(fresh):
    """A rolling upgrade does not take the old processes down."""
    migrate.upgrade(fresh)
    pretend(fresh, NEXT, min_client=int(migrate.HEAD))
    migrate.ensure(fresh)

    assert migrate.check(fresh).fit is Fit.NEWER
    assert migrate.check(fresh).usable


def test_tables_that_are_too_new_are_refused(fresh):
    migrate.upgrade(fresh)
    pretend(fresh, NEXT, min_client=int(NEXT))

    with pytest.raises(SchemaError, match=r"too new .* install a newer"):
        migrate.ensure(fresh)


def test_an_upgrade_leaves_newer_tables_alone(fresh):
    migrate.upgrade(fresh)
    pretend(fresh, NEXT)
    migrate.upgrade(fresh)

    assert migrate.current(fresh) == NEXT


def test_two_prefixes_share_a_database_and_nothing_else(fresh):
    with opened(fresh.options, table_prefix="second_") as other:
        migrate.upgrade(fresh)
        assert migrate.check(other).fit is Fit.MISSING
        migrate.upgrade(other)
        SQLMessageStore(other).publish([NewMessage("q", b"x", "{}")])

        assert (counts(fresh), counts(other)) == (0, 1)


def test_a_named_schema_is_made_if_it_is_missing(fresh):
    if Capability.LISTEN_NOTIFY not in fresh.dialect.capabilities:
        pytest.skip("this database has no schemas")
    with opened(fresh.options, schema="sqlqueue_test_schema") as elsewhere:
        assert "CREATE SCHEMA sqlqueue_test_schema" in migrate.script(elsewhere)
        migrate.upgrade(elsewhere)

        assert migrate.check(elsewhere).fit is Fit.CURRENT
        assert migrate.check(fresh).fit is Fit.MISSING
        elsewhere.run(lambda tx: tx.execute(DropSchema("sqlqueue_test_schema", cascade=True)))


def details(database: Database) -> list[tuple[str, ...]]:
    """What the database itself says of our tables, without their prefix."""
    prefix = database.tables.prefix
    read = text(DETAILS[database.dialect.name])
    named = {"like": f"{prefix}%", "version": f"{prefix}version%", "schema": database.options.schema}
    rows = database.statement(lambda c: c.execute(read, named).all())
    return sorted(tuple(str(value).replace(prefix, "") for value in row) for row in rows)


DETAILS = {
    "postgresql": """
        SELECT c.relname, c.relkind, c.reloptions, pg_get_indexdef(i.indexrelid), s.seqtypid::regtype, s.seqcache
        FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid LEFT JOIN pg_sequence s ON s.seqrelid = c.oid
        WHERE c.relname LIKE :like AND c.relname NOT LIKE :version AND c.relkind IN ('r', 'i', 'S')
            AND c.relnamespace = CAST(:schema AS regnamespace)
    """,
    "sqlite": """
        SELECT name, type, sql FROM sqlite_master WHERE name LIKE :like AND name NOT LIKE :version
            AND CAST(:schema AS text) IS NULL
    """,
    "mysql": """
        SELECT s.table_name, s.index_name, s.seq_in_index, s.column_name, s.non_unique FROM information_schema.statistics s
        WHERE s.table_schema = DATABASE() AND s.table_name LIKE :like AND s.table_name NOT LIKE :version
        UNION ALL SELECT c.table_name, c.column_name, c.ordinal_position, c.column_type, c.is_nullable
        FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
        WHERE c.table_schema = DATABASE() AND c.table_name LIKE :like AND c.table_name NOT LIKE :version
            AND t.table_type = 'BASE TABLE' AND :schema IS NULL
    """,
}
