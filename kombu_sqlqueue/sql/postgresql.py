"""PostgreSQL's answers. Nothing here needs a session, so that a pooler in transaction mode may sit between."""

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
    Text,
    Update,
    bindparam,
    event,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError

from ..errors import ConfigurationError
from ..topics import LONGEST_NAME, queue_topic
from .connecting import Connector, completed, login
from .dialect import Capability, Trouble, begin

if TYPE_CHECKING:
    from ..options import DatabaseOptions
    from .listen import Listener
    from .schema import Tables

__all__ = ["PostgreSQL"]

#: How long to wait for a free connection of the pool, in seconds.
POOL_TIMEOUT = 30.0
#: A transaction of ours whose process was stopped in the middle ends after so many seconds, and its locks with it.
IDLE_IN_TRANSACTION = 10
#: The key of the advisory lock that migrations take: "sqlqueue" as a number.
MIGRATION_LOCK = int.from_bytes(b"sqlqueue"[:7], "big")

#: SQLSTATEs and classes of them (two characters), the longer first.
TROUBLES = {
    "23505": Trouble.CONFLICT,
    "40P01": Trouble.RETRY,
    "40001": Trouble.RETRY,
    "55P03": Trouble.RETRY,
    "57P01": Trouble.UNAVAILABLE,
    "57P02": Trouble.UNAVAILABLE,
    "57P03": Trouble.UNAVAILABLE,
    "25006": Trouble.UNAVAILABLE,
    "25P03": Trouble.UNAVAILABLE,
    "25P04": Trouble.UNAVAILABLE,
    "57P05": Trouble.UNAVAILABLE,
    "42P01": Trouble.SCHEMA,
    "42703": Trouble.SCHEMA,
    "3F000": Trouble.SCHEMA,
    "42501": Trouble.DENIED,
    "08": Trouble.UNAVAILABLE,
    "53": Trouble.UNAVAILABLE,
}
#: Said of the number of a transaction that has not begun yet.
IN_THE_FUTURE = "22023"
#: After these the connection is of no use: the server ends it, or it leads to a standby.
USELESS_AFTER = frozenset({"57P01", "57P02", "57P03", "57P05", "25006", "25P03", "25P04"})


class PostgreSQL:
    """PostgreSQL 12 or later, by psycopg 3."""

    name = "postgresql"
    capabilities = frozenset(Capability)
    migrates_itself = False

    def __init__(self, options: DatabaseOptions) -> None:
        self._options = options

    def create_engine(self, options: DatabaseOptions) -> Engine:
        try:
            engine = sa.create_engine(
                completed(options.url),
                # Each statement commits itself unless we begin a transaction.
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
                use_native_hstore=False,
                pool_size=options.pool_size,
                max_overflow=0,
                pool_timeout=POOL_TIMEOUT,
            )
        except ImportError as error:
            raise ConfigurationError(
                f"the PostgreSQL driver cannot be loaded ({error}): pip install 'kombu-sqlqueue[postgresql]'"
            ) from error
        event.listen(engine, "do_connect", Connector(options).connect)
        event.listen(engine, "begin", _begin)
        event.listen(engine, "handle_error", _drop_useless)
        return engine

    def now(self) -> ColumnElement[int]:
        # The bare call is evaluated for every row; only as a subquery can it be an index condition.
        # now() would stand still while a transaction waits for locks.
        return select(_microseconds(func.clock_timestamp())).scalar_subquery()

    def rows(self, name: str, **columns: type[Any]) -> FromClause:
        # With a cast, since not every driver tells the type of a list that is all NULL.
        types = [pg.ARRAY(kind) for kind in columns.values()]
        lists = [sa.cast(bindparam(f"{name}_{place}", type_=each), each) for place, each in enumerate(types)]
        return func.unnest(*lists).table_valued(*columns).render_derived(name=name)

    def packed(self, name: str, columns: int, rows: Collection[Sequence[Any]]) -> dict[str, Any]:
        return {f"{name}_{place}": [row[place] for row in rows] for place in range(columns)}

    def given(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        return column == sa.any_(bindparam(f"{name}_0", type_=pg.ARRAY(column.type)))

    def given_both(self, first: ColumnElement[Any], second: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        pairs = self.rows(name, first=first.type.__class__, second=second.type.__class__)
        exactly = sa.tuple_(first, second).in_(select(pairs.c.first, pairs.c.second))
        return sa.and_(self.given(first, name), exactly)

    def found(self, column: ColumnElement[Any], values: Select[Any]) -> ColumnElement[bool]:
        # IN would be a join, which a plan made for an empty table may begin at the wrong end.
        return column == sa.any_(func.array(values.scalar_subquery(), type_=pg.ARRAY(column.type)))

    def compiling(self, dialect: Any) -> Any:
        return type(dialect)(paramstyle="numeric_dollar")

    def cursor(self, driver: Any) -> Any:
        from psycopg import RawCursor

        # The usual one looks for placeholders in each statement, and forgets what it found in long ones.
        return RawCursor(driver)

    def before_write(self, tx: Connection) -> None:
        """Nothing to do: the driver begins transactions."""

    def unhurried(self) -> ColumnElement[bool]:
        # A subquery, so that it is done once and not for each row; true for this transaction only.
        return select(func.set_config("synchronous_commit", "off", True)).scalar_subquery() == "off"

    def takes_writes(self) -> ColumnElement[bool]:
        return func.current_setting("transaction_read_only") == "off"

    def sending(self) -> AbstractContextManager[None]:
        return nullcontext()

    def classify(self, error: DBAPIError) -> Trouble:
        state = getattr(error.orig, "sqlstate", None)
        if state is None:
            # The driver itself noticed: no connection, or it broke.
            gone = isinstance(error, OperationalError) or error.connection_invalidated
            return Trouble.UNAVAILABLE if gone else Trouble.OTHER
        return TROUBLES.get(state) or TROUBLES.get(state[:2]) or Trouble.OTHER

    def upsert(self, table: Any, values: Any, *, update: Any, keep: Any = (), where: Any = None) -> Executable:
        statement = pg.insert(table).values(values)
        new = dict(update) if isinstance(update, Mapping) else {name: statement.excluded[name] for name in update}
        new |= {name: sa.func.coalesce(statement.excluded[name], table.c[name]) for name in keep}
        return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=new, where=where)

    def insert_missing(self, table: Any, values: Sequence[Any], *, key: Any = None) -> Any:
        return pg.insert(table).values(list(values)).on_conflict_do_nothing(index_elements=key or list(table.primary_key))

    def inserting(self, table: Any, values: Mapping[str, Any]) -> Callable[[Connection, Mapping[str, Any]], bool]:
        statement = self.insert_missing(table, [values]).execution_options(preserve_rowcount=True)
        return lambda tx, parameters: tx.execute(statement, parameters).rowcount == 1

    def next_position(self, tables: Tables) -> ColumnElement[int]:
        return tables.positions.next_value()

    def announcement(self, tables: Tables, now: ColumnElement[int], *, always: bool) -> Select[int, str]:
        announced = self.rows("announced", topic=Text, waited_as=Text)
        notified = func.count(func.pg_notify(_channel(tables), announced.c.topic))
        announcing = select(notified, _transaction_id().label("transaction_id"))
        if always:
            return announcing.select_from(announced)
        # A notification takes a lock that all committers share: only where someone waits.
        waiter = tables.waiter.c
        waits = select(1).where(waiter.topic == announced.c.waited_as, waiter.expires_at > now)
        return announcing.where(waits.exists())

    def announcing(
        self, write: Any, tables: Tables, topic: ColumnElement[str], waited_as: str, *, now: ColumnElement[int]
    ) -> Executable:
        written = write.returning(literal(1).label("written")).cte("written")
        waiter = tables.waiter.c
        waits = select(1).where(waiter.topic == waited_as, waiter.expires_at > now)
        notified = select(func.count(func.pg_notify(_channel(tables), topic))).where(waits.exists()).scalar_subquery()
        return select(written.c.written, notified)

    def promoting(
        self, write: Update, tables: Tables, *, now: ColumnElement[int], by: ColumnElement[str]
    ) -> Select[int, list[str] | None, int | None, int]:
        m = tables.message.c
        written = write.where(self.unhurried()).returning(m.id, m.queue).cte("written")
        # As `topic_name` has it.
        digest = func.encode(func.sha256(func.convert_to(written.c.queue, "UTF8")), "hex")
        name = sa.case((func.octet_length(written.c.queue) <= LONGEST_NAME, written.c.queue), else_=digest)
        topics = select((literal(queue_topic("")) + name).label("topic")).distinct().cte("topics")
        waiter = tables.waiter.c
        waits = select(1).where(waiter.topic == topics.c.topic, waiter.expires_at > now, waiter.waiter != by)
        notified = (
            select(func.count(func.pg_notify(_channel(tables), topics.c.topic))).where(waits.exists()).scalar_subquery()
        )
        # The statement sees all as they were before it.
        others = select(m.due_at - now).where(m.due_at.is_not(None), m.id.not_in(select(written.c.id)))
        return select(
            select(func.count()).select_from(written).scalar_subquery(),
            select(func.array_agg(written.c.queue.distinct())).scalar_subquery(),
            others.order_by(m.due_at).limit(1).scalar_subquery(),
            notified,
        )

    def waker(self, engine: Engine, tables: Tables) -> Listener:
        from .listen import Listener

        host, port = self._options.listen_at or (None, None)
        # Where to ask directly, what the URL leads to being a pooler.
        url = engine.url if host is None else engine.url.set(host=host, port=port).difference_update_query(["host", "port"])
        _, parameters = engine.dialect.create_connect_args(url)
        question = select(_channel(tables), func.pg_backend_pid())
        text = str(question.compile(engine, compile_kwargs={"literal_binds": True}))

        def arguments() -> dict[str, Any]:
            return {**parameters, "application_name": "sqlqueue listen", **login(self._options)}

        return Listener(arguments, text)

    def horizon(self) -> Select[int, int]:
        now = func.txid_current_snapshot()
        return select(func.txid_snapshot_xmin(now), func.txid_snapshot_xmax(now))

    def transaction_id(self, tx: Connection) -> str | None:
        return str(tx.scalar(select(_transaction_id())))

    def committed(self, tx: Connection, transaction_id: str) -> bool | None:
        number, _, started_at = transaction_id.partition(" ")
        asked = select(func.txid_status(literal(int(number), BigInteger)), _server_start())
        try:
            status, now_started_at = tx.execute(asked).one()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == IN_THE_FUTURE:
                # The server crashed before it had written down that there was such a transaction.
                return False
            raise
        if status == "committed" and now_started_at != started_at:
            # After a crash such a number is given again: this may be what became of somebody else's.
            return None
        return {"committed": True, "aborted": False}.get(status)

    def identity(self, tx: Connection, tables: Tables) -> Hashable | None:
        found = tx.execute(select(_table_number(tables, required=False), func.current_database(), _server_start())).one()
        return None if found[0] is None else tuple(found)

    def started_at(self) -> ColumnElement[int] | None:
        return select(_microseconds(func.pg_postmaster_start_time())).scalar_subquery()

    def migration_lock(self, tx: Connection, *, wait: timedelta) -> None:
        milliseconds = str(wait // timedelta(milliseconds=1))
        tx.execute(select(func.set_config("lock_timeout", milliseconds, True)))
        tx.execute(select(func.pg_advisory_xact_lock(literal(MIGRATION_LOCK, BigInteger))))


def _channel(tables: Tables) -> ColumnElement[str]:
    """The name under which those who share these tables wake each other, by whatever schema or search path they found them."""
    return func.concat("sqlqueue_", _table_number(tables, required=True))


def _table_number(tables: Tables, *, required: bool) -> ColumnElement[int]:
    """The server's own number of one of these tables. If it does not exist that is an error where `required`, else NULL."""
    dialect: Any = pg.dialect
    name = literal(dialect().identifier_preparer.format_table(tables.waiter), Text)
    return sa.cast(sa.cast(name, pg.REGCLASS) if required else func.to_regclass(name), pg.OID)


def _transaction_id() -> ColumnElement[str]:
    """The number of the transaction, and the run of the server that gave it."""
    return func.concat(func.txid_current(), " ", _server_start())


def _server_start() -> ColumnElement[str]:
    return sa.cast(_microseconds(func.pg_postmaster_start_time()), Text)


def _microseconds(instant: ColumnElement[Any]) -> ColumnElement[int]:
    return sa.cast(sa.extract("epoch", instant) * 1_000_000, BigInteger)


def _begin(connection: Connection) -> None:
    # In one round trip, and for this transaction only: a pooler may give the next one to somebody else.
    words = f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION}s'"
    begin(connection, lambda: _driver(connection).execute(words, prepare=False))


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _drop_useless(context: ExceptionContext) -> None:
    if getattr(context.original_exception, "sqlstate", None) in USELESS_AFTER:
        context.is_disconnect = True
