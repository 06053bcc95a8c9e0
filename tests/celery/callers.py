"""The ways in which an application may have a transaction of its own, each with a table of orders."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from kombu_sqlqueue import in_transaction
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.database import Database

from ..databases import execute

__all__ = ["KINDS", "Caller", "caller", "orders"]


@dataclass
class Caller:
    """An application in the middle of a transaction."""

    #: What it gives to `in_transaction`.
    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    table: str
    #: Runs a function that is not async, from code that is.
    run: Callable[[Callable[[], Any]], Any] = lambda function: function()

    def order(self, number: int) -> None:
        self.execute(f"INSERT INTO {self.table} VALUES ({number})")

    def send(self, function: Callable[[], Any]) -> Any:
        """Call it in the transaction."""

        def sending() -> Any:
            with in_transaction(self.connection):
                return function()

        return self.run(sending)


#: By database, the kinds of callers it has.
KINDS = {
    "sqlite": ["sqlalchemy", "session", "scoped", "async", "sqlite3"],
    "postgresql": [
        "sqlalchemy",
        "sqlalchemy_psycopg2",
        "session",
        "scoped",
        "async",
        "psycopg",
        "psycopg_dicts",
        "psycopg2",
    ],
    "mariadb": ["sqlalchemy", "sqlalchemy_mysqldb", "session", "pymysql", "mysqldb"],
}
SQLALCHEMY = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
ASYNC = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg_async"}


@contextmanager
def orders(options: DatabaseOptions) -> Iterator[str]:
    """The name of a table with one column, `id`, as anybody would write it in a statement."""
    table = f"orders_{uuid.uuid4().hex[:8]}"
    qualified = f"{options.schema}.{table}" if options.schema else table
    database = Database(options)
    execute(database, f"CREATE TABLE {qualified} (id INTEGER)")
    yield qualified
    execute(database, f"DROP TABLE {qualified}")
    database.dispose()


@contextmanager
def caller(kind: str, database_name: str, options: DatabaseOptions, table: str) -> Iterator[Caller]:
    """A caller of that kind. `table`, with one column of numbers, exists."""
    url = make_url(options.url)
    if kind in RAW:
        yield from RAW[kind](url, table)
        return
    name = {"sqlalchemy_psycopg2": "postgresql+psycopg2", "sqlalchemy_mysqldb": "mysql+mysqldb"}.get(kind)
    if kind == "async":
        yield from _async(url.set(drivername=ASYNC[database_name]), table)
        return
    if kind == "sqlalchemy_mysqldb":
        pytest.importorskip("MySQLdb")
    engine = sa.create_engine(url.set(drivername=name or SQLALCHEMY[database_name]))
    try:
        if kind.startswith("sqlalchemy"):
            with engine.connect() as connection:
                execute = lambda sql: connection.execute(sa.text(sql))
                yield Caller(connection, execute, connection.commit, connection.rollback, table)
        else:
            session: Any = Session(engine) if kind == "session" else scoped_session(sessionmaker(engine))
            execute = lambda sql: session.execute(sa.text(sql))
            yield Caller(session, execute, session.commit, session.rollback, table)
            session.close()
    finally:
        engine.dispose()


def _async(url: URL, table: str) -> Iterator[Caller]:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    pytest.importorskip("aiosqlite")
    with asyncio.Runner() as runner:
        engine = create_async_engine(url)
        session = AsyncSession(engine)
        yield Caller(
            session.sync_session,
            lambda sql: runner.run(session.execute(sa.text(sql))),
            lambda: runner.run(session.commit()),
            lambda: runner.run(session.rollback()),
            table,
            lambda function: runner.run(session.run_sync(lambda _: function())),
        )
        runner.run(session.close())
        runner.run(engine.dispose())


def _raw(connection: Any, table: str) -> Iterator[Caller]:
    cursor = connection.cursor()
    yield Caller(connection, cursor.execute, connection.commit, connection.rollback, table)
    connection.close()


def _sqlite3(url: URL, table: str) -> Iterator[Caller]:
    import sqlite3

    connection = sqlite3.connect(str(url.database))
    connection.row_factory = lambda cursor, row: {"surprise": row}
    yield from _raw(connection, table)


def _psycopg(url: URL, table: str) -> Iterator[Caller]:
    import psycopg

    yield from _raw(psycopg.connect(_dsn(url)), table)


def _psycopg_dicts(url: URL, table: str) -> Iterator[Caller]:
    import psycopg
    from psycopg.rows import dict_row

    yield from _raw(psycopg.connect(_dsn(url), row_factory=dict_row, cursor_factory=psycopg.ClientCursor), table)


def _psycopg2(url: URL, table: str) -> Iterator[Caller]:
    psycopg2 = pytest.importorskip("psycopg2")
    from psycopg2.extras import RealDictCursor

    yield from _raw(psycopg2.connect(_dsn(url), cursor_factory=RealDictCursor), table)


def _pymysql(url: URL, table: str) -> Iterator[Caller]:
    import pymysql

    yield from _raw(pymysql.connect(**_parts(url), cursorclass=pymysql.cursors.DictCursor), table)


def _mysqldb(url: URL, table: str) -> Iterator[Caller]:
    mysqldb = pytest.importorskip("MySQLdb")
    import MySQLdb.cursors

    yield from _raw(mysqldb.connect(**_parts(url), cursorclass=MySQLdb.cursors.DictCursor), table)


def _dsn(url: URL) -> str:
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=False)


def _parts(url: URL) -> dict[str, Any]:
    return {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": url.password or "",
        "database": url.database,
    }


RAW: dict[str, Callable[[URL, str], Iterator[Caller]]] = {
    "sqlite3": _sqlite3,
    "psycopg": _psycopg,
    "psycopg_dicts": _psycopg_dicts,
    "psycopg2": _psycopg2,
    "pymysql": _pymysql,
    "mysqldb": _mysqldb,
}
