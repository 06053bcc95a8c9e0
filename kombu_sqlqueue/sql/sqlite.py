"""SQLite's answers: one writer at a time, who takes the write lock before it reads."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    FromClause,
    Select,
    bindparam,
    event,
    func,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from ..errors import ConfigurationError, StoreUnavailableError, TransactionNotSupportedError
from .dialect import Capability, Trouble, begin
from .own_lock import is_own_lock
from .watch import File, Memory, Watcher

if TYPE_CHECKING:
    from ..options import DatabaseOptions
    from .schema import Tables

__all__ = ["SQLite"]

#: How long, in seconds, to try to become the writer, and the pause between two tries.
LOCK_TIMEOUT = 30.0
LOCK_PAUSE = (0.001, 0.010)

#: After how many seconds who sends looks whether it waits for a transaction of its own process.
SUSPICIOUS_AFTER = 3.0

#: SQLite's result codes, the extended ones first.
TROUBLES = {
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: Trouble.CONFLICT,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: Trouble.CONFLICT,
    sqlite3.SQLITE_CONSTRAINT_ROWID: Trouble.CONFLICT,
    sqlite3.SQLITE_BUSY: Trouble.RETRY,
    sqlite3.SQLITE_LOCKED: Trouble.RETRY,
    sqlite3.SQLITE_FULL: Trouble.UNAVAILABLE,
    sqlite3.SQLITE_IOERR: Trouble.UNAVAILABLE,
    sqlite3.SQLITE_READONLY: Trouble.UNAVAILABLE,
    sqlite3.SQLITE_CANTOPEN: Trouble.UNAVAILABLE,
}
#: An extended code has the plain one in its lowest byte.
PLAIN = 0xFF
#: SQLite has one code for all that is wrong with a statement.
SCHEMA_WORDS = ("no such table", "no such column", "has no column named")


class SQLite:
    """SQLite 3.35 or later: a file, or one connection that a single process shares (``sqlite://``)."""

    name = "sqlite"
    capabilities = frozenset(
        {Capability.UPDATE_RETURNING, Capability.GOES_BY_KEY, Capability.COMMIT_STATUS, Capability.TRANSACTIONAL_DDL}
    )
    migrates_itself = True

    def __init__(self) -> None:
        self._latest: _Connection | None = None

    def create_engine(self, options: DatabaseOptions) -> Engine:
        url = _absolute(make_url(options.url))
        engine = sa.create_engine(
            url,
            # The driver begins no transaction: _Connection does, and takes the write lock first.
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
            poolclass=QueuePool,
            pool_size=options.pool_size if url.database else 1,
            max_overflow=0,
            pool_timeout=LOCK_TIMEOUT,
            connect_args={
                "timeout": 0,
                "check_same_thread": False,
                "factory": _factory(url.database or "", options.safe_url),
            },
        )
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "begin", _begin)
        event.listen(engine, "before_cursor_execute", _begin_to_write)
        return engine

    def _connected(self, connection: _Connection, record: object) -> None:
        connection.prepare()
        self._latest = connection

    def now(self) -> ColumnElement[int]:
        # The database's clock is this machine's.
        return bindparam("now", callable_=lambda: time.time_ns() // 1000, type_=BigInteger, unique=True)

    def rows(self, name: str, **columns: type[Any]) -> FromClause:
        value = func.json_each(bindparam(name, type_=sa.Text)).table_valued("value", name=f"{name}_json").c.value
        parts = [func.json_extract(value, f"$[{place}]", type_=kind()) for place, kind in enumerate(columns.values())]
        return select(*(part.label(column) for part, column in zip(parts, columns, strict=True))).subquery(name)

    def packed(self, name: str, columns: int, rows: Collection[Sequence[Any]]) -> dict[str, Any]:
        return {name: json.dumps([list(row) for row in rows])}

    def given(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        first = self.rows(name, first=column.type.__class__)
        return column.in_(select(first.c.first))

    def given_both(self, first: ColumnElement[Any], second: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        pairs = self.rows(name, first=first.type.__class__, second=second.type.__class__)
        exactly = sa.tuple_(first, second).in_(select(pairs.c.first, pairs.c.second))
        return sa.and_(self.given(first, name), exactly)

    def found(self, column: ColumnElement[Any], values: Select[Any]) -> ColumnElement[bool]:
        return column.in_(values)

    def compiling(self, dialect: Any) -> Any:
        return dialect

    def cursor(self, driver: Any) -> Any:
        return driver.cursor()

    def before_write(self, tx: Connection) -> None:
        driver = _driver(tx)
        if not driver.in_transaction:
            driver.begin()

    def unhurried(self) -> ColumnElement[bool]:
        return sa.true()

    def takes_writes(self) -> ColumnElement[bool]:
        return sa.true()

    @contextmanager
    def sending(self) -> Iterator[None]:
        token = _sending.set(True)
        try:
            yield
        finally:
            _sending.reset(token)

    def classify(self, error: DBAPIError) -> Trouble:
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is None:
            return Trouble.OTHER
        if code == sqlite3.SQLITE_ERROR and any(words in str(error.orig) for words in SCHEMA_WORDS):
            return Trouble.SCHEMA
        return TROUBLES.get(code) or TROUBLES.get(code & PLAIN) or Trouble.OTHER

    def upsert(self, table: Any, values: Any, *, update: Any, keep: Any = (), where: Any = None) -> Executable:
        statement = sqlite.insert(table).values(values)
        new = dict(update) if isinstance(update, Mapping) else {name: statement.excluded[name] for name in update}
        new |= {name: sa.func.coalesce(statement.excluded[name], table.c[name]) for name in keep}
        return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=new, where=where)

    def insert_missing(self, table: Any, values: Sequence[Any], *, key: Any = None) -> Any:
        return (
            sqlite.insert(table).values(list(values)).on_conflict_do_nothing(index_elements=key or list(table.primary_key))
        )

    def inserting(self, table: Any, values: Mapping[str, Any]) -> Callable[[Connection, Mapping[str, Any]], bool]:
        statement = self.insert_missing(table, [values]).execution_options(preserve_rowcount=True)
        return lambda tx, parameters: tx.execute(statement, parameters).rowcount == 1

    def next_position(self, tables: Tables) -> None:
        return None

    def announcement(self, tables: Tables, now: ColumnElement[int], *, always: bool) -> None:
        """None: who waits watches the file."""

    def announcing(
        self, write: Any, tables: Tables, topic: ColumnElement[str], waited_as: str, *, now: ColumnElement[int]
    ) -> Executable:
        statement: Executable = write.returning(sa.literal(1))
        return statement

    def promoting(self, write: Any, tables: Tables, *, now: ColumnElement[int], by: ColumnElement[str]) -> None:
        return None

    def waker(self, engine: Engine, tables: Tables) -> Watcher:
        path = engine.url.database
        return Watcher(lambda: Memory(lambda: self._latest) if path is None else File(path))

    def horizon(self) -> None:
        return None

    def transaction_id(self, tx: Connection) -> str | None:
        return "the local one"

    def committed(self, tx: Connection, transaction_id: str) -> bool | None:
        # A commit that fails here is rolled back: there is no line that could break in between.
        return False

    def identity(self, tx: Connection, tables: Tables) -> Hashable | None:
        file = sa.table("pragma_database_list", sa.column("name"), sa.column("file"))
        path = tx.scalar(select(file.c.file).where(file.c.name == "main"))
        # One in memory has no other connections.
        return Path(path).resolve() if path else None

    def started_at(self) -> ColumnElement[int] | None:
        return None

    def migration_lock(self, tx: Connection, *, wait: timedelta) -> None:
        """Nothing to do: a transaction has the file to itself."""


#: Whether this thread or task is inside `SQLite.sending`.
_sending: ContextVar[bool] = ContextVar("sending", default=False)


class _Connection(sqlite3.Connection):
    """A connection whose transactions hold the write lock from their first moment."""

    #: The threads of a process queue here; SQLite's own lock has no queue.
    writing: threading.Lock
    path: str
    safe_url: str
    is_writer = False

    def prepare(self) -> None:
        """Let readers and the writer get on with each other, and make commits durable."""
        self._persist("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=FULL")

    def begin(self) -> None:
        """Become the writer. Raises StoreUnavailableError if others do not let us."""
        if not self.writing.acquire(timeout=LOCK_TIMEOUT):
            raise self._locked()
        self.is_writer = True
        try:
            self._persist("BEGIN IMMEDIATE")
        except BaseException:
            self._resign()
            raise

    def commit(self) -> None:
        super().commit()
        self._resign()

    def rollback(self) -> None:
        super().rollback()
        self._resign()

    def close(self) -> None:
        super().close()
        self._resign()

    def _resign(self) -> None:
        # Not asked of SQLite: a full disk makes it end the transaction on its own.
        if self.is_writer:
            self.is_writer = False
            self.writing.release()

    def _persist(self, statement: str) -> None:
        """Execute it, again and again while someone else has the file locked."""
        began = time.monotonic()
        own_since: float | None = None
        while True:
            try:
                self.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & PLAIN != sqlite3.SQLITE_BUSY:
                    raise
                now = time.monotonic()
                if now - began > LOCK_TIMEOUT:
                    raise self._locked() from error
                # Another engine of this process may have it for a moment: that is seen at one look, but not at all.
                own_since = (own_since or now) if _sending.get() and is_own_lock(self.path) else None
                if own_since is not None and now - own_since > SUSPICIOUS_AFTER:
                    raise self._locked_by_itself() from error
            # Nobody queues for this lock: tries at random moments share it least unfairly.
            time.sleep(random.uniform(*LOCK_PAUSE))

    def _locked_by_itself(self) -> TransactionNotSupportedError:
        return TransactionNotSupportedError(
            f"{self.safe_url}: a transaction of this very process has kept the database locked for {SUSPICIOUS_AFTER:.0f} s:"
            " send inside in_transaction(its connection), or after its commit"
        )

    def _locked(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self.safe_url}: database is locked: another writer kept it for {LOCK_TIMEOUT:.0f} s")


def _factory(path: str, safe_url: str) -> type[_Connection]:
    """The connections of one engine, which share a lock."""
    shared = {"writing": threading.Lock(), "path": path, "safe_url": safe_url}
    return type("_EngineConnection", (_Connection,), shared)


def _absolute(url: URL) -> URL:
    """The URL with the file's whole path, so that a change of directory does not matter."""
    if not url.database or url.database == ":memory:":
        return url.set(database=None)
    path = Path(url.database).absolute()
    if not path.parent.is_dir():
        raise ConfigurationError(f"the directory {path.parent} of the database {path.name} does not exist: create it first")
    return url.set(database=str(path))


def _begin(connection: Connection) -> None:
    begin(connection, lambda: _driver(connection).begin())


def _begin_to_write(connection: Connection, cursor: Any, statement: str, *rest: object) -> None:
    """A single statement that only reads needs no transaction; any other needs the write lock, too."""
    driver = _driver(connection)
    if not driver.in_transaction and not statement.lstrip().upper().startswith(("SELECT", "PRAGMA", "EXPLAIN")):
        driver.begin()


def _driver(connection: Connection) -> _Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, _Connection)
    return driver
