"""The questions that databases answer differently. One small class a database answers them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import ColumnElement, Connection, Engine, Executable, FromClause, Select, Update
    from sqlalchemy.exc import DBAPIError

    from ..options import DatabaseOptions
    from .schema import Tables

__all__ = ["COMMITS_ITSELF", "Capability", "Dialect", "Trouble", "Waker", "begin"]


class Capability(enum.Enum):
    """What a database can do; tests and stores ask for these, never for a database by name."""

    SKIP_LOCKED = enum.auto()
    LISTEN_NOTIFY = enum.auto()
    UPDATE_RETURNING = enum.auto()
    """A statement that changes rows can tell which, and what they are now."""
    CONCURRENT_WRITERS = enum.auto()
    LATE_COMMITS = enum.auto()
    """A lower position may be committed after a higher one."""
    SEQUENCES = enum.auto()
    LATERAL = enum.auto()
    ARRAYS = enum.auto()
    """A list is one parameter, whatever it is a list of."""
    GOES_BY_KEY = enum.auto()
    """A statement that changes rows by a list of ids touches no others, however small the table."""
    WRITES_TOGETHER = enum.auto()
    """One statement may write several tables."""
    COMMIT_STATUS = enum.auto()
    """The database tells afterwards whether a transaction was committed."""
    TRANSACTIONAL_DDL = enum.auto()
    """What makes or alters tables is undone with its transaction."""


class Trouble(enum.Enum):
    """What a database error means for who met it."""

    CONFLICT = enum.auto()
    """A unique value exists: someone else won."""
    RETRY = enum.auto()
    """The whole transaction may be tried again at once."""
    UNAVAILABLE = enum.auto()
    """The database is away, full, read-only or refuses work just now."""
    SCHEMA = enum.auto()
    """A table or a column is missing."""
    DENIED = enum.auto()
    """The role lacks a right."""
    TOO_BIG = enum.auto()
    """The database does not take as much data at once."""
    OTHER = enum.auto()


class Waker(Protocol):
    """Blocks until the database says that something changed: a thread of its own calls it."""

    def wait(self, timeout: float) -> Collection[str] | None:
        """Wait up to `timeout` seconds. The topics announced, or None if anything may have changed.

        An empty answer means that nothing was heard. Raises StoreUnavailableError if the
        connection is gone; the next call makes a new one.
        """

    def interrupt(self) -> None:
        """Make a `wait` in another thread return soon."""

    def close(self) -> None: ...


#: The execution option of a statement that commits itself. Switching the isolation level for it would
#: cost more than the statement.
COMMITS_ITSELF = "sqlqueue_commits_itself"


def begin(connection: Connection, by_driver: Callable[[], object]) -> None:
    """Begin a transaction, as the driver does it, where SQLAlchemy begins one, unless each statement is to commit itself.

    Errors are SQLAlchemy's, as if it had done it.
    """
    if connection.get_execution_options().get(COMMITS_ITSELF):
        return
    errors: Any = connection.dialect.loaded_dbapi
    try:
        by_driver()
    except errors.Error as error:
        connection._handle_dbapi_exception(error, "BEGIN", None, None, None)


class Dialect(Protocol):
    """A database, as the stores see it. Each `Database` has a dialect of its own."""

    name: str
    capabilities: frozenset[Capability]
    migrates_itself: bool
    """Whether nobody has to be asked before its tables are altered: it is a file of our own."""

    def create_engine(self, options: DatabaseOptions) -> Engine:
        """An engine whose transactions are READ COMMITTED, or one writer at a time.

        Raises ConfigurationError if the driver is missing; it names the extra to install.
        """

    def now(self) -> ColumnElement[int]:
        """The database's time in microseconds, usable as an index condition."""

    def rows(self, name: str, **columns: type[Any]) -> FromClause:
        """A table that is a parameter: one text however many rows. `packed` makes its values."""

    def packed(self, name: str, columns: int, rows: Collection[Sequence[Any]]) -> dict[str, Any]:
        """The parameters that give `rows(name, ...)`, or `given(..., name)`, these rows of so many columns."""

    def given(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Whether the column is among the first values of `rows(name, ...)`, found by an index."""

    def given_both(self, first: ColumnElement[Any], second: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Whether the two columns together are among the `rows(name, ...)`, found by an index on the first."""

    def found(self, column: ColumnElement[Any], values: Select[Any]) -> ColumnElement[bool]:
        """Whether the column is among the few values selected, found by an index."""

    def compiling(self, dialect: Any) -> Any:
        """What compiles statements for `cursor`, given SQLAlchemy's dialect of the engine."""

    def cursor(self, driver: Any) -> Any:
        """The driver's cursor that takes such a statement without reading it once more."""

    def before_write(self, tx: Connection) -> None:
        """Called before a statement that writes is handed to the driver without SQLAlchemy's knowledge."""

    def unhurried(self) -> ColumnElement[bool]:
        """Always true; with it in its condition a statement's commit need not wait for the disk.

        For a statement that commits itself only: it holds for the whole transaction.
        """

    def takes_writes(self) -> ColumnElement[bool]:
        """Whether the server lets this session write just now, true if it does not tell."""

    def sending(self) -> AbstractContextManager[None]:
        """Inside, who would wait for a transaction of its own process is told so: TransactionNotSupportedError."""

    def classify(self, error: DBAPIError) -> Trouble: ...

    def upsert(self, table: Any, values: Any, *, update: Any, keep: Any = (), where: Any = None) -> Executable:
        """INSERT, or where the primary key exists UPDATE with `update` if `where` holds.

        `update` maps columns to what they become, or names those that take the inserted value; those that `keep` names
        take it unless it is NULL.
        """

    def insert_missing(self, table: Any, values: Sequence[Any], *, key: Any = None) -> Any:
        """INSERT the rows whose primary key, or unique `key`, does not exist yet."""

    def inserting(self, table: Any, values: Mapping[str, Any]) -> Callable[[Connection, Mapping[str, Any]], bool]:
        """What INSERTs a row, given the parameters of `values`; false if its primary key exists already."""

    def next_position(self, tables: Tables) -> ColumnElement[int] | None:
        """A number above all it gave before, as an expression that makes nobody wait; None if there is none."""

    def announcement(self, tables: Tables, now: ColumnElement[int], *, always: bool) -> Select[int, str] | None:
        """Wakes who waits for the rows (topic, waited_as) given as `announced`, when the transaction commits.

        With `always` it does not look whether somebody waits already: who begins to before a commit
        that is far off is to be woken, too. It selects how many were announced and the `transaction_id`. None where there is nothing to
        do. `Database.announce` is the way in.
        """

    def announcing(
        self, write: Any, tables: Tables, topic: ColumnElement[str], waited_as: str, *, now: ColumnElement[int]
    ) -> Executable:
        """`write`, an INSERT of one row, that announces the topic to who waits, too, if it takes effect.

        It returns a row then, and none otherwise.
        """

    def promoting(
        self, write: Update, tables: Tables, *, now: ColumnElement[int], by: ColumnElement[str]
    ) -> Executable | None:
        """`write`, which makes due messages ready, telling all who wait for them but the waiter `by`; it need not be on disk.

        It selects how many messages it changed, a list of their queues, the microseconds until the first of the others
        is due, and something else. None where that takes more than a statement.
        """

    def waker(self, engine: Engine, tables: Tables) -> Waker | None:
        """What to wait on, or None where polling is all there is."""

    def horizon(self) -> Select[int, int] | None:
        """Asks for the oldest transaction that is open and the number the next one will get."""

    def transaction_id(self, tx: Connection) -> str | None:
        """What `committed` wants to know the transaction by."""

    def committed(self, tx: Connection, transaction_id: str) -> bool | None:
        """Whether that transaction took effect, None if nobody can tell."""

    def identity(self, tx: Connection, tables: Tables) -> Hashable | None:
        """What tells this database and these tables from all others, as `tx` finds them; None if it does not."""

    def started_at(self) -> ColumnElement[int] | None:
        """The database's start in microseconds, None if it has none to speak of."""

    def migration_lock(self, tx: Connection, *, wait: timedelta) -> None:
        """Hold others off until the transaction ends. Raises StoreUnavailableError if they hold us off for `wait`."""
