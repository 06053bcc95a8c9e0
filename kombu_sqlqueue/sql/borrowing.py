"""A connection of the caller's, with his transaction, in the one form in which we write: SQLAlchemy's.

What a database driver made is wrapped. The transaction remains the caller's: what SQLAlchemy would
do to end or to begin one does nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool, PoolProxiedConnection

from ..errors import TransactionNotSupportedError

__all__ = ["borrowed", "has_begun", "transaction_of"]

#: SQLAlchemy's names for the drivers, by the package of their connections.
DRIVERS = {
    "psycopg": "postgresql+psycopg",
    "psycopg2": "postgresql+psycopg2",
    "MySQLdb": "mysql+mysqldb",
    "pymysql": "mysql+pymysql",
    "sqlite3": "sqlite+pysqlite",
}
#: How PostgreSQL's drivers say that no transaction has begun, and the bit by which MySQL's server says that one has.
IDLE = 0
IN_TRANSACTION = 1


def borrowed(given: Any) -> Connection:
    """The connection of a SQLAlchemy Session or Connection, or one around that of a driver.

    Raises TransactionNotSupportedError if it is none of them, or commits each statement by itself.
    """
    if hasattr(given, "run_sync") or inspect.iscoroutinefunction(getattr(given, "commit", None)):
        raise TransactionNotSupportedError(
            f"{_kind(given)} can be used by async code only: let SQLAlchemy's `await session.run_sync(send)` call your"
            " function send(session), and use in_transaction(session) there"
        )
    if isinstance(given, Connection):
        return _begun(given)
    if hasattr(given, "get_bind"):
        return _begun(given.connection())
    package = next((name for each in type(given).__mro__ if (name := each.__module__.partition(".")[0]) in DRIVERS), None)
    if package is None:
        raise TransactionNotSupportedError(
            f"{_kind(given)} cannot be written on: give a SQLAlchemy Session or Connection, a connection of Django,"
            f" or one of {', '.join(DRIVERS)}"
        )
    _check_begun(given)
    return Connection(_engine(package), connection=_Lent(given, CURSORS[package]))


def has_begun(given: Any) -> bool:
    """Whether the transaction is open; also true where nobody can tell, as with mysqlclient."""
    if hasattr(given, "registry"):
        given = given.registry()
    if isinstance(given, Connection) or hasattr(given, "get_bind"):
        return bool(given.in_transaction())
    if hasattr(given, "in_transaction"):
        return bool(given.in_transaction)
    status = getattr(getattr(given, "info", None), "transaction_status", None)
    return status != IDLE and bool(getattr(given, "server_status", IN_TRANSACTION) & IN_TRANSACTION)


def transaction_of(given: Any) -> object:
    """What tells one transaction from the next, where SQLAlchemy knows; None for a driver's connection."""
    if hasattr(given, "registry"):
        given = given.registry()
    return given.get_transaction() if hasattr(given, "get_transaction") else None


def _begun(connection: Connection) -> Connection:
    if not connection.in_transaction():
        connection.begin()
    _check_begun(connection.connection.dbapi_connection)
    return connection


def _check_begun(driver: Any) -> None:
    if _commits_itself(driver):
        raise TransactionNotSupportedError(
            f"{_kind(driver)} commits each statement by itself: begin a transaction before in_transaction(), or switch"
            " autocommit off"
        )


def _commits_itself(driver: Any) -> bool:
    if hasattr(driver, "in_transaction"):  # SQLite's: it begins one before it writes, unless told not to
        return driver.isolation_level is None and not driver.in_transaction
    if hasattr(driver, "get_autocommit"):
        return bool(driver.get_autocommit()) and not getattr(driver, "server_status", 0) & IN_TRANSACTION
    if not getattr(driver, "autocommit", False):
        return False
    info = getattr(driver, "info", None)
    return info is None or info.transaction_status == IDLE


def _kind(given: Any) -> str:
    return f"a connection of type {type(given).__module__}.{type(given).__qualname__}"


class _Lent(PoolProxiedConnection):
    """A driver's connection as SQLAlchemy wants it, with rows that are tuples, whatever they are for its owner."""

    is_valid = True
    is_detached = True

    def __init__(self, driver: Any, cursor: Callable[[Any], Any]) -> None:
        self.dbapi_connection = self.driver_connection = driver
        self._cursor = cursor
        self.info: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver_connection, name)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        return self._cursor(self.dbapi_connection)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def detach(self) -> None: ...

    def invalidate(self, e: BaseException | None = None, soft: bool = False) -> None:
        self.is_valid = False


class _Untouched:
    """The part of a dialect that leaves a transaction alone."""

    supports_statement_cache = True

    def do_begin(self, connection: Any) -> None: ...

    def do_commit(self, connection: Any) -> None: ...

    def do_rollback(self, connection: Any) -> None: ...

    def do_close(self, connection: Any) -> None: ...


@cache
def _engine(package: str) -> Engine:
    """What turns statements into the words of this driver. It makes no connections."""
    url = make_url(f"{DRIVERS[package]}://")
    kind = url.get_dialect()
    dialect: Any = type(f"Lent{kind.__name__}", (_Untouched, kind), {"supports_statement_cache": True})
    return Engine(NullPool(_connect_nowhere), dialect(dbapi=kind.import_dbapi()), url, hide_parameters=True)


def _connect_nowhere() -> Any:
    raise TransactionNotSupportedError("the connection that was lent is lost")


def _psycopg(driver: Any) -> Any:
    psycopg: Any = sys.modules["psycopg"]
    return psycopg.Cursor(driver, row_factory=psycopg.rows.tuple_row)


def _psycopg2(driver: Any) -> Any:
    return driver.cursor(cursor_factory=sys.modules["psycopg2"].extensions.cursor)


def _of_mysql(package: str) -> Callable[[Any], Any]:
    return lambda driver: driver.cursor(sys.modules[f"{package}.cursors"].Cursor)


def _sqlite(driver: Any) -> Any:
    cursor = driver.cursor()
    cursor.row_factory = None
    return cursor


CURSORS: dict[str, Callable[[Any], Any]] = {
    "psycopg": _psycopg,
    "psycopg2": _psycopg2,
    "MySQLdb": _of_mysql("MySQLdb"),
    "pymysql": _of_mysql("pymysql"),
    "sqlite3": _sqlite,
}
