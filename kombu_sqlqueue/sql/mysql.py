"""MariaDB's answers, and MySQL's, which differ in a line here and there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
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
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidatePoolError

from ..errors import ConfigurationError, StoreUnavailableError
from .dialect import Capability, Trouble, begin

if TYPE_CHECKING:
    from ..options import DatabaseOptions
    from .glance import Glancer
    from .schema import Tables

__all__ = ["MySQL"]

#: How long to wait for a free connection of the pool, in seconds.
POOL_TIMEOUT = 30.0
#: The name of the lock that migrations take. It is one for the whole server.
MIGRATION_LOCK = "sqlqueue migration"

#: Microseconds since 1970. Unlike NOW() it does not depend on the session's time zone; unlike
#: SYSDATE() it is the same for a whole statement, so that an index can be searched for it.
NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

#: The server's error numbers, then those of the driver.
TROUBLES = {
    1062: Trouble.CONFLICT,
    1213: Trouble.RETRY,  # deadlock
    1205: Trouble.RETRY,  # a lock did not come in time
    1020: Trouble.RETRY,  # the row has changed since it was read
    1040: Trouble.UNAVAILABLE,  # too many connections: of all, of this user
    1203: Trouble.UNAVAILABLE,
    1226: Trouble.UNAVAILABLE,
    1053: Trouble.UNAVAILABLE,  # shutting down
    1927: Trouble.UNAVAILABLE,  # killed
    4031: Trouble.UNAVAILABLE,  # idle for too long
    1047: Trouble.UNAVAILABLE,  # the cluster has no quorum
    1290: Trouble.UNAVAILABLE,  # read-only
    1792: Trouble.UNAVAILABLE,
    1836: Trouble.UNAVAILABLE,
    1021: Trouble.UNAVAILABLE,  # the disk is full, or something else fails down there
    1026: Trouble.UNAVAILABLE,
    1030: Trouble.UNAVAILABLE,
    1114: Trouble.UNAVAILABLE,
    1037: Trouble.UNAVAILABLE,  # out of memory
    1041: Trouble.UNAVAILABLE,
    1146: Trouble.SCHEMA,
    1054: Trouble.SCHEMA,
    1044: Trouble.DENIED,
    1142: Trouble.DENIED,
    1143: Trouble.DENIED,
    1227: Trouble.DENIED,
    1370: Trouble.DENIED,
    1153: Trouble.TOO_BIG,
    1406: Trouble.TOO_BIG,
    0: Trouble.UNAVAILABLE,  # the driver has closed the connection before
    2002: Trouble.UNAVAILABLE,
    2003: Trouble.UNAVAILABLE,
    2005: Trouble.UNAVAILABLE,
    2006: Trouble.UNAVAILABLE,
    2013: Trouble.UNAVAILABLE,
    2014: Trouble.UNAVAILABLE,
    2055: Trouble.UNAVAILABLE,
    1049: Trouble.UNAVAILABLE,  # no such database, perhaps not yet
    1045: Trouble.UNAVAILABLE,  # not let in, perhaps not yet: a password may be changing
    1698: Trouble.UNAVAILABLE,
}
#: After these the connection is of no use: the server ends it, or it leads to a replica.
USELESS_AFTER = frozenset({1053, 1290, 1792, 1836, 1927, 4031})


class MySQL:
    """MariaDB 10.6 or later, or MySQL 8.0.17 or later, by PyMySQL."""

    name = "mysql"
    capabilities = frozenset({Capability.SKIP_LOCKED, Capability.CONCURRENT_WRITERS, Capability.LATE_COMMITS})
    migrates_itself = False

    def __init__(self) -> None:
        self._is_mariadb = True

    def create_engine(self, options: DatabaseOptions) -> Engine:
        try:
            from .mysql_connecting import Connector

            engine = sa.create_engine(
                # A URL that says mariadb:// may lead to MySQL, too, and SQLAlchemy would object.
                make_url(options.url).set(drivername="mysql+pymysql"),
                # Each statement commits itself unless we begin a transaction, which is READ COMMITTED.
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
                pool_size=options.pool_size,
                max_overflow=0,
                pool_timeout=POOL_TIMEOUT,
            )
        except ImportError as error:
            raise ConfigurationError(
                f"the MySQL driver cannot be loaded ({error}): pip install 'kombu-sqlqueue[mysql]'"
            ) from error
        event.listen(engine, "do_connect", Connector(options).connect)
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "checkout", _see_that_it_lives)
        event.listen(engine, "begin", _begin)
        event.listen(engine, "handle_error", _drop_useless)
        return engine

    def _connected(self, connection: Any, record: object) -> None:
        self._is_mariadb = connection.is_mariadb

    def now(self) -> ColumnElement[int]:
        return sa.literal_column(NOW, BigInteger)

    def rows(self, name: str, **columns: type[Any]) -> FromClause:
        raise NotImplementedError("rows are not a parameter here: ask for ARRAYS or LATERAL first, or use given")

    def packed(self, name: str, columns: int, rows: Collection[Sequence[Any]]) -> dict[str, Any]:
        # The driver writes a list as (1, 2) and a list of tuples as ((1, 2), (3, 4)), but cannot write an empty one.
        if columns == 1:
            return {name: [row[0] for row in rows] or [None]}
        packed = [tuple(row) for row in rows] or [(None,) * columns]
        return {name: packed, f"{name}_first": [row[0] for row in packed]}

    def given(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        # Values and no subquery: only those are looked up in an index when rows are changed.
        return _is_in(column, name)

    def given_both(self, first: ColumnElement[Any], second: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        # MariaDB looks up no pair in an index if there is only one.
        return sa.and_(_is_in(first, f"{name}_first"), _is_in(sa.tuple_(first, second), name))

    def found(self, column: ColumnElement[Any], values: Select[Any]) -> ColumnElement[bool]:
        return column.in_(values)

    def compiling(self, dialect: Any) -> Any:
        return dialect

    def cursor(self, driver: Any) -> Any:
        return driver.cursor()

    def before_write(self, tx: Connection) -> None:
        """Nothing to do: a transaction has begun already, if it is to be one."""

    def unhurried(self) -> ColumnElement[bool]:
        # How durable a commit is can be said for the whole server only.
        return sa.true()

    def takes_writes(self) -> ColumnElement[bool]:
        # A user with enough rights writes to a server that says it is read-only.
        return sa.true()

    def sending(self) -> AbstractContextManager[None]:
        return nullcontext()

    def classify(self, error: DBAPIError) -> Trouble:
        number = error.orig.args[0] if error.orig is not None and error.orig.args else None
        return TROUBLES.get(number, Trouble.OTHER) if isinstance(number, int) else Trouble.OTHER

    def upsert(self, table: Any, values: Any, *, update: Any, keep: Any = (), where: Any = None) -> Executable:
        statement = mysql.insert(table).values(values)
        new = dict(update) if isinstance(update, Mapping) else {name: statement.inserted[name] for name in update}
        new |= {name: sa.func.coalesce(statement.inserted[name], table.c[name]) for name in keep}
        if where is not None:
            new = _if_holds(table, where, new)
        return statement.on_duplicate_key_update(list(new.items()))

    def insert_missing(self, table: Any, values: Sequence[Any], *, key: Any = None) -> Any:
        # Not IGNORE, which would cut what is too long and take what is wrong.
        [same, *_] = table.primary_key
        return mysql.insert(table).values(list(values)).on_duplicate_key_update({same.name: same})

    def inserting(self, table: Any, values: Mapping[str, Any]) -> Callable[[Connection, Mapping[str, Any]], bool]:
        # A row count tells nothing here: what it is for a row that exists depends on the connection.
        statement = sa.insert(table).values(values)

        def insert(tx: Connection, parameters: Mapping[str, Any]) -> bool:
            try:
                tx.execute(statement, parameters)
            except IntegrityError as error:
                if self.classify(error) is not Trouble.CONFLICT:
                    raise
                return False
            return True

        return insert

    def next_position(self, tables: Tables) -> ColumnElement[int]:
        # The time. A counter would make publishers wait for each other's commits, MySQL has no sequences,
        # and a table that counts rows inserted costs another write. When the server's clock is set back
        # some messages overtake others, and nothing else: claims begin at the head of a lane here.
        return self.now()

    def announcement(self, tables: Tables, now: ColumnElement[int], *, always: bool) -> None:
        """None: who waits looks for new messages."""

    def announcing(
        self, write: Any, tables: Tables, topic: ColumnElement[str], waited_as: str, *, now: ColumnElement[int]
    ) -> Executable:
        raise NotImplementedError("no statement tells here whether it took effect: ask for UPDATE_RETURNING first")

    def promoting(self, write: Any, tables: Tables, *, now: ColumnElement[int], by: ColumnElement[str]) -> None:
        return None

    def waker(self, engine: Engine, tables: Tables) -> Glancer:
        from .glance import Glancer

        return Glancer(engine, tables)

    def horizon(self) -> None:
        return None

    def transaction_id(self, tx: Connection) -> str | None:
        return None

    def committed(self, tx: Connection, transaction_id: str) -> bool | None:
        return None

    def identity(self, tx: Connection, tables: Tables) -> Hashable | None:
        server: list[ColumnElement[str]] = [sa.literal_column(name) for name in ("@@hostname", "@@port", "@@datadir")]
        return tuple(tx.execute(select(sa.func.database(), *server)).one())

    def started_at(self) -> ColumnElement[int]:
        schema = "information_schema" if self._is_mariadb else "performance_schema"
        status = sa.table("global_status", sa.column("variable_name"), sa.column("variable_value"), schema=schema)
        uptime = select(sa.cast(status.c.variable_value, BigInteger)).where(status.c.variable_name == "UPTIME")
        return self.now() - uptime.scalar_subquery() * 1_000_000

    def migration_lock(self, tx: Connection, *, wait: timedelta) -> None:
        driver: Any = tx.connection.driver_connection
        if not driver.lock(MIGRATION_LOCK, wait.total_seconds()):
            raise StoreUnavailableError(f"someone else has been migrating for {wait.total_seconds():.0f} s")


def _is_in(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    # Of a type that leaves the list to the driver.
    return column.op("IN", is_comparison=True, return_type=sa.Boolean())(bindparam(name, type_=BigInteger))


def _if_holds(table: Any, where: ColumnElement[bool], new: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an update that changes something only if `where` holds.

    They are computed one after the other, each with the earlier ones set already: what the condition
    asks for must come last, and can be one column only.
    """
    asked = {part.name for part in sa.sql.visitors.iterate(where) if isinstance(part, sa.Column) and part.table is table}
    last = [name for name in new if name in asked]
    if len(last) > 1:
        raise NotImplementedError(f"an upsert cannot change {last} if its condition asks for them")
    in_order = [*(name for name in new if name not in asked), *last]
    return {name: sa.case((where, new[name]), else_=table.c[name]) for name in in_order}


def _begin(connection: Connection) -> None:
    begin(connection, lambda: _driver(connection).begin())


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _see_that_it_lives(connection: Any, record: object, proxy: object) -> None:
    """The server ends sessions that are idle for long, and nobody shall notice."""
    if not connection.lives():
        raise InvalidatePoolError


def _drop_useless(context: ExceptionContext) -> None:
    arguments = context.original_exception.args
    if arguments and arguments[0] in USELESS_AFTER:
        context.is_disconnect = True
