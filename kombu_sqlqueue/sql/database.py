"""One database: its engine, its dialect, its clock, and how a transaction is run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Connection, Engine, Executable, Select, Update, bindparam, select, true
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool

from ..clock import Clock
from ..errors import (
    ConfigurationError,
    MessageTooBigError,
    OutcomeUnknownError,
    SchemaError,
    StoreUnavailableError,
    TransactionFailedError,
    TransactionNotSupportedError,
)
from ..options import DatabaseOptions
from ..topics import waited_as
from .dialect import COMMITS_ITSELF, Capability, Dialect, Trouble, Waker
from .direct import Direct
from .gate import GATE
from .lending import Loan, current_loan, inside, is_apart
from .schema import Tables

__all__ = ["Database"]

T = TypeVar("T")

#: How often a transaction is tried that met a deadlock, or a lock that did not come in time.
TRANSACTION_TRIES = 5
#: For how long, and how often, in seconds, to ask what became of a commit that was not answered.
ASK_FOR = 10.0
ASK_EVERY = 0.1

#: What is known of a connection's transaction, in its `info`.
TRANSACTION = "sqlqueue transaction"
#: What SQLAlchemy calls the databases of each of our dialects.
DIALECT_NAMES = {"postgresql": ("postgresql",), "sqlite": ("sqlite",), "mysql": ("mysql", "mariadb")}
NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


class Database:
    """A database and how work is done in it. Safe to share between threads, not across a fork."""

    def __init__(self, options: DatabaseOptions, *, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock
        self.tables = Tables(options.table_prefix, options.schema)
        self.dialect = dialect_for(options)
        self.engine = self.dialect.create_engine(options)
        self._statements = self.engine.execution_options(**{COMMITS_ITSELF: True})
        #: How often a connection was lost, or could not be had.
        self.losses = 0
        self._inherited: list[Pool] = []
        self._joined: ContextVar[Connection | None] = ContextVar("joined", default=None)
        self._identity: Hashable | None = None
        #: Finds a transaction that the caller is in without saying so, as a framework knows it.
        self.ambient_loan: Callable[[], Loan | None] | None = None

    def __repr__(self) -> str:
        return f"<Database {self.options.safe_url}>"

    def now(self) -> ColumnElement[int]:
        """The time, as the database sees it when the statement runs, however long ago it was built."""
        if self.clock is not None:
            return bindparam("now", callable_=self.clock.now, type_=BigInteger, unique=True)
        return self.dialect.now()

    def unhurried(self) -> ColumnElement[bool]:
        """As `Dialect.unhurried`, for what is repeated if it is lost, unless even that is to be durable."""
        return true() if self.options.durable_acks else self.dialect.unhurried()

    def started_at(self) -> ColumnElement[int] | None:
        """When the database was started, None if it has no such moment, or time is moved by hand."""
        return self.dialect.started_at() if self.clock is None else None

    def run(self, work: Callable[[Connection], T], *, repeatable: bool = True, joins: bool = False) -> T:
        """Do `work` in one transaction, and the whole again after a deadlock or a lost connection.

        A loss at the commit itself is repeated only if the work is `repeatable`; otherwise the
        database is asked what became of it. With `joins` the work takes part in the transaction
        of `joined`, or one that was lent to us, where there is one, and is not repeated.

        Raises StoreUnavailableError if nothing was done, OutcomeUnknownError if nobody can tell,
        TransactionFailedError if it is the caller who has to repeat, SchemaError for missing tables;
        any other database error as it came.
        """
        if not joins:
            self._check_not_alone()
            return self._repeat(lambda: self._transaction(work, repeatable=repeatable))
        outer = self._outer()
        if outer is not None:
            with self._as_guest():
                return work(outer)
        with self.dialect.sending():
            return self._repeat(lambda: self._transaction(work, repeatable=repeatable))

    def statement(self, work: Callable[[Connection], T]) -> T:
        """Do `work`, one statement that commits itself and may be repeated."""
        outer = None if self.has_writers else self._outer()
        if outer is not None:
            # Where there is one writer it would wait for itself.
            with self._as_guest():
                return work(outer)

        def once() -> T:
            # The server commits each statement by itself; SQLite, which is told when, at the end.
            with self._free_statements().begin() as connection:
                return work(connection)

        return self._repeat(once)

    @contextmanager
    def joined(self, connection: Connection) -> Iterator[None]:
        """Let the `run` calls of this thread or task that join take part in `connection`'s transaction."""
        token = self._joined.set(connection)
        try:
            with inside():
                yield
        finally:
            self._joined.reset(token)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction of its own that joining `run` calls take part in; not repeated."""
        outer = self._outer()
        if outer is not None:
            with self._as_guest():
                yield outer
            return
        with GATE, self.translated(), self.engine.begin() as connection, self.joined(connection):
            yield connection

    @property
    def in_transaction(self) -> bool:
        """Whether this thread or task is in a transaction that joining work takes part in: of `joined`,
        of `transaction`, or one of its own that is lent to us.
        """
        return self._outer() is not None

    @property
    def is_joined(self) -> bool:
        """Whether this thread or task is inside `joined` or `transaction`."""
        return self._joined.get() is not None

    @property
    def has_writers(self) -> bool:
        """Whether several may write at once; otherwise nobody writes beside a transaction that is open."""
        return Capability.CONCURRENT_WRITERS in self.dialect.capabilities

    def _check_not_alone(self) -> None:
        """Where there is one writer, who was lent a transaction would wait for its end in vain."""
        if not self.has_writers and self._joined.get() is None and self._outer() is not None:
            raise TransactionNotSupportedError(
                f"{self.options.safe_url}: a transaction given to in_transaction() is open, and nobody can write beside it:"
                " only sending is possible before it has ended, not retry(), nor asking workers"
            )

    def _outer(self) -> Connection | None:
        joined = self._joined.get()
        if joined is not None:
            return joined
        loan = self.loan
        return loan.connection(self) if loan is not None else None

    @property
    def loan(self) -> Loan | None:
        """The transaction that is lent to this thread or task, perhaps of another database."""
        if is_apart():
            return None
        return current_loan() or (self.ambient_loan() if self.ambient_loan is not None else None)

    def is_own(self, tx: Connection) -> bool:
        """Whether we made the connection, so that it behaves as our dialect has it."""
        return any(tx.dialect is engine.dialect for engine in self._engines())

    def is_seen_by(self, tx: Connection) -> bool:
        """Whether a connection that somebody else made leads to these very tables."""
        if tx.dialect.name not in DIALECT_NAMES[self.dialect.name]:
            return False
        with self._as_guest():
            theirs = self.dialect.identity(tx, self.tables)
        if theirs is not None and theirs != self._identity:
            # At first, and after the server was started again.
            self._identity = self.statement(lambda own: self.dialect.identity(own, self.tables))
        return theirs is not None and theirs == self._identity

    def announce(
        self,
        tx: Connection,
        topics: Collection[str],
        *,
        by: Direct | None = None,
        parameters: Mapping[str, Any] = NO_PARAMETERS,
    ) -> None:
        """Wake who waits for these topics when the transaction commits.

        That is done `by` a statement made of `announcement`, if there is more to do in the same round trip.
        """
        announce = self._announce if by is None else by
        if announce is not None and topics:
            listed = [(topic, waited_as(topic)) for topic in sorted(set(topics))]
            (answer,) = announce(tx, {**parameters, **self.dialect.packed("announced", 2, listed)})
            # Whoever wants to know how the commit went need not ask for this again.
            tx.info[TRANSACTION] = (tx.get_transaction(), str(answer.transaction_id))

    def announcement(self, *, always: bool = False) -> Select[int, str] | None:
        """As `Dialect.announcement`."""
        return self.dialect.announcement(self.tables, self.now(), always=always)

    @cached_property
    def _announce(self) -> Direct | None:
        announcement = self.announcement()
        return None if announcement is None else Direct(self, announcement)

    def announcing(self, write: Any, topic: ColumnElement[str], waited_as: str) -> Executable:
        """As `Dialect.announcing`."""
        return self.dialect.announcing(write, self.tables, topic, waited_as, now=self.now())

    def promoting(self, write: Update, *, by: ColumnElement[str]) -> Executable | None:
        """As `Dialect.promoting`."""
        return self.dialect.promoting(write, self.tables, now=self.now(), by=by)

    def waker(self) -> Waker | None:
        """As `Dialect.waker`."""
        return self.dialect.waker(self.engine, self.tables)

    def ping(self, *, to_write: bool = False) -> None:
        """Touch the database. Raises StoreUnavailableError if it is away or, asked for one `to_write`, if it is read-only now."""
        question = select(self.dialect.takes_writes() if to_write else true())
        if not self.statement(lambda connection: connection.scalar(question)):
            # The next connection may be given another server, which is not.
            self.dispose()
            raise StoreUnavailableError(f"{self.options.safe_url}: the server is read-only, as a standby is")

    def dispose(self) -> None:
        """Close every pooled connection."""
        for engine in self._engines():
            engine.dispose()

    def abandon(self) -> None:
        """Forget the parent's connections after a fork, without a word on the parent's sockets."""
        for engine in self._engines():
            engine.dispose(close=False)

    def _free_engine(self) -> Engine:
        """Where to get a connection from. Who has one already for a transaction gets no second one of the
        pool: threads that all have one and wait for another would wait for each other.
        """
        return self._aside if self._joined.get() is not None else self.engine

    def _free_statements(self) -> Engine:
        if self._joined.get() is None:
            return self._statements
        return self._aside.execution_options(**{COMMITS_ITSELF: True})

    @cached_property
    def _aside(self) -> Engine:
        return self.dialect.create_engine(replace(self.options, pool_size=1))

    @cached_property
    def compiling_dialect(self) -> Any:
        """SQLAlchemy's dialect for statements that are handed to the driver's `cursor` as they are."""
        return self.dialect.compiling(self.engine.dialect)

    def _engines(self) -> list[Engine]:
        return [self.engine, *([self._aside] if "_aside" in self.__dict__ else [])]

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise database errors as ours, where we have a word for them."""
        try:
            yield
        except (DBAPIError, PoolTimeout) as error:
            raise self._translate(error) from error

    @contextmanager
    def _as_guest(self) -> Iterator[None]:
        """As `translated`, in a transaction that may be somebody else's: what breaks it is not to be tried again in it."""
        try:
            with self.translated():
                yield
        except StoreUnavailableError as error:
            if self._joined.get() is not None:
                raise
            raise TransactionFailedError(f"{error}: roll the transaction back and repeat the whole of it") from error

    def _transaction(self, work: Callable[[Connection], T], *, repeatable: bool) -> T:
        committing = False
        transaction_id = None
        try:
            with self._free_engine().connect() as connection, connection.begin():
                answer = work(connection)
                transaction_id = None if repeatable else self._transaction_id(connection)
                committing = True
            return answer
        except DBAPIError as error:
            if repeatable or not committing or self.dialect.classify(error) is not Trouble.UNAVAILABLE:
                raise
            if self._committed(transaction_id):
                return answer
            raise

    def _transaction_id(self, tx: Connection) -> str | None:
        transaction, known = tx.info.pop(TRANSACTION, (None, None))
        if transaction is not None and transaction is tx.get_transaction():
            return str(known)
        return self.dialect.transaction_id(tx)

    def _committed(self, transaction_id: str | None) -> bool:
        """What became of a transaction whose commit was not answered. Raises OutcomeUnknownError."""
        until = time.monotonic() + ASK_FOR
        while transaction_id is not None:
            with suppress(StoreUnavailableError):
                known = self.statement(lambda tx: self.dialect.committed(tx, transaction_id))
                if known is not None:
                    return known
            # The server may be starting again, or may not have noticed yet that we are gone.
            if time.monotonic() > until:
                break
            time.sleep(ASK_EVERY)
        raise OutcomeUnknownError("the connection broke at the commit and the database cannot tell whether it took effect")

    def _repeat(self, once: Callable[[], T]) -> T:
        lost = False
        for tries in range(1, TRANSACTION_TRIES + 1):
            try:
                with GATE:
                    return once()
            except DBAPIError as error:
                trouble = self.dialect.classify(error)
                self.losses += trouble is Trouble.UNAVAILABLE
                again = trouble is Trouble.RETRY or (trouble is Trouble.UNAVAILABLE and not lost)
                if not again or tries == TRANSACTION_TRIES:
                    raise self._translate(error) from error
                lost = lost or trouble is Trouble.UNAVAILABLE
                time.sleep(random.uniform(0, 0.01 * 2**tries))
            except PoolTimeout as error:
                raise self._translate(error) from error
        raise AssertionError("unreachable")

    def _translate(self, error: DBAPIError | PoolTimeout) -> Exception:
        if isinstance(error, PoolTimeout):
            return StoreUnavailableError(
                f"{self.options.safe_url}: no connection became free: raise pool_size, it is {self.options.pool_size}"
            )
        # Only the driver's own words: SQLAlchemy's text has the statement in it, and psycopg quotes a line.
        said = str(error.orig).partition("\nLINE ")[0].strip()
        trouble = self.dialect.classify(error)
        if trouble in (Trouble.UNAVAILABLE, Trouble.RETRY):
            return StoreUnavailableError(f"{self.options.safe_url}: {said}")
        if trouble is Trouble.TOO_BIG:
            return MessageTooBigError(f"{self.options.safe_url}: {said}")
        if trouble is Trouble.SCHEMA:
            return SchemaError(f"{self.options.safe_url}: {said}: run `celery sqlqueue migrate`")
        if trouble is Trouble.DENIED:
            return ConfigurationError(f"{self.options.safe_url}: {said}: grant the role what docs/security.md lists")
        return error


def dialect_for(options: DatabaseOptions) -> Dialect:
    """The dialect of a database. Imports nothing of the others."""
    name = make_url(options.url).get_backend_name()
    if name == "postgresql":
        from .postgresql import PostgreSQL

        return PostgreSQL(options)
    if name == "sqlite":
        from .sqlite import SQLite

        return SQLite()
    if name in ("mysql", "mariadb"):
        from .mysql import MySQL

        return MySQL()
    raise ConfigurationError(
        f"{name} is not supported: use sqlqueue+postgresql://, sqlqueue+mysql:// or sqlqueue+sqlite:///"
    )
