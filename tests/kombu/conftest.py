"""Connections of Kombu to each database, as a user makes them."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kombu import Connection
from sqlalchemy import func, select

import kombu_sqlqueue  # noqa: F401  It makes the URLs known to Kombu.
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database

from ..databases import wipe


@pytest.fixture
def connect(database_options: DatabaseOptions) -> Iterator[Callable[..., Connection]]:
    """Makes connections to the database under test; all are closed at the end."""
    where = {"table_prefix": database_options.table_prefix, "schema": database_options.schema}

    with ExitStack() as stack:

        def connect(**options: Any) -> Connection:
            connection = Connection(f"sqlqueue+{database_options.url}", transport_options={**where, **options})
            return stack.enter_context(connection)

        yield connect
    process = process_for(database_options)
    process.close()
    database = Database(database_options)
    wipe(database)
    database.dispose()


@pytest.fixture
def connection(connect: Callable[..., Connection]) -> Connection:
    return connect()


@pytest.fixture
def channel(connection: Connection) -> Any:
    return connection.channel()


@pytest.fixture
def count_rows(database_options: DatabaseOptions) -> Iterator[Callable[..., list[int]]]:
    """How many rows the tables of these names have."""
    database = Database(database_options)

    def count_rows(*tables: str) -> list[int]:
        counts = [select(func.count()).select_from(getattr(database.tables, table)) for table in tables]
        return [database.statement(lambda tx, count=count: int(tx.execute(count).scalar_one())) for count in counts]

    yield count_rows
    database.dispose()


@pytest.fixture
def name() -> str:
    """A name for a queue that no other test uses."""
    return f"q-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def drain() -> Callable[..., int]:
    """Delivers up to `limit` messages; returns how many came before nothing did for `timeout` seconds."""

    def drain(connection: Connection, limit: int = 1000, *, timeout: float = 0.3) -> int:
        for count in range(limit):
            try:
                connection.drain_events(timeout=timeout)
            except socket.timeout:  # noqa: UP041  It is what Kombu promises.
                return count
        return limit

    return drain
