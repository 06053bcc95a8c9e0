"""What one operating system process shares: an engine, a notifier and a lease keeper a database."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import nullcontext

from .errors import SQLQueueError, TransactionNotSupportedError
from .keeper import Chore, LeaseKeeper
from .messages import NewMessage
from .notifier import Notifier
from .options import DatabaseOptions, Options
from .route_cache import RouteCache
from .sql.chords import SQLChordStore
from .sql.database import Database
from .sql.gate import GATE
from .sql.lending import Loan, apart
from .sql.messages import SQLMessageStore
from .sql.migrate import ensure
from .sql.outbox import SQLOutbox
from .sql.pruning import Pruning
from .sql.results import SQLResultStore
from .sql.revocations import SQLRevocationStore
from .sql.routing import SQLRoutingStore
from .sql.waiters import SQLWaiters
from .topics import waited_as

__all__ = ["Process", "process_for"]

logger = logging.getLogger(__name__)

#: Seconds between two rounds of deleting what has expired, and how much one round deletes.
PRUNE_EVERY = 30.0
PRUNE_BATCH = 1000


class Process:
    """This process and one database."""

    def __init__(self, options: DatabaseOptions) -> None:
        self.database = Database(options)
        if options.django_alias is not None:
            from . import replacing
            from .contrib.django import AtomicBlocks

            replacing.install()
            self.database.ambient_loan = AtomicBlocks(options.django_alias)
        self.messages = SQLMessageStore(self.database)
        self.routing = SQLRoutingStore(self.database)
        self.routes = RouteCache(self.routing)
        self.results = SQLResultStore(self.database)
        self.chords = SQLChordStore(self.database)
        self.revocations = SQLRevocationStore(self.database)
        self.outbox = SQLOutbox(self.database)
        self._waiters = SQLWaiters(self.database)
        self._pruning = Pruning(
            self.database,
            [
                (self.messages.has_expired, lambda: self.messages.expire(limit=PRUNE_BATCH)),
                (self.results.has_expired, lambda: self.results.prune(limit=PRUNE_BATCH)),
                (self.routing.has_unused, lambda: self.routing.sweep(limit=PRUNE_BATCH)),
                (self.revocations.has_expired, lambda: self.revocations.prune(limit=PRUNE_BATCH)),
                (self._waiters.has_expired, self._waiters.prune),
            ],
        )
        self.notifier = Notifier(self._waiters, self._open_waker, waited_as=waited_as)
        self._lock = threading.Lock()
        self._keepers: dict[tuple[object, ...], LeaseKeeper] = {}
        self._ready = False

    def prepare(self, *, to_write: bool = False) -> None:
        """Touch the database, and the first time see that its tables are there.

        Raises StoreUnavailableError if it is away or, asked for one `to_write`, if it is read-only now; SchemaError
        for missing or old tables.
        """
        if not self._ready:
            ensure(self.database)
            self._ready = True
            if not to_write:
                return
        self.database.ping(to_write=to_write)

    def require_loan(self) -> Loan | None:
        """The transaction that was lent to send in, None if there is none.

        Raises TransactionNotSupportedError if it is one of another database.
        """
        loan = self.database.loan
        if loan is not None and loan.connection(self.database) is None:
            raise TransactionNotSupportedError(
                f"the transaction given to in_transaction() is not one of the broker, {self.database.options.safe_url}, or"
                f" does not find its tables there: it must be a connection to the same database, schema and server"
            )
        return loan

    def publish_at_once(self, messages: Sequence[NewMessage]) -> None:
        """Publish in no transaction but our own; where nobody writes beside one that is open, in that."""
        with apart() if self.database.has_writers else nullcontext():
            self.messages.publish(messages)

    def keeper(self, options: Options) -> LeaseKeeper:
        """The keeper of this process's leases; one for each kind of lease asked for."""
        key = (options.lease_for, options.max_reclaims)
        with self._lock:
            if key not in self._keepers:
                self._keepers[key] = LeaseKeeper(
                    self.messages,
                    self.routing,
                    name=f"{socket.gethostname()}:{os.getpid()}",
                    lease_for=options.lease_for,
                    max_reclaims=options.max_reclaims,
                    in_database=lambda: GATE.holds_me,
                    chores=[Chore(self._pruning.run, PRUNE_EVERY)],
                )
            return self._keepers[key]

    def catch_up(self) -> None:
        """As `LeaseKeeper.catch_up`, of all that there are; in a transaction of the caller's that is not for us to do."""
        if self.database.in_transaction:
            return
        with self._lock:
            keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.catch_up()

    def close(self) -> None:
        """Give back what is held and close every connection. The next use opens them again."""
        with self._lock:
            keepers, self._keepers = list(self._keepers.values()), {}
        for keeper in keepers:
            keeper.close()
        self.database.dispose()

    def _open_waker(self):  # type: ignore[no-untyped-def]
        return self.database.waker() if self.database.options.listen else None


_processes: dict[DatabaseOptions, Process] = {}
_lock = threading.Lock()
#: What a child inherited. Kept, never closed: closing would speak on the parent's sockets, and
#: closing an inherited SQLite file drops the locks that the child has on the same file.
_inherited: list[Process] = []


def process_for(options: DatabaseOptions) -> Process:
    """What this process shares for that database, made on first use."""
    if options not in _processes:
        # Inside the gate: a child must not inherit a module half imported, nor our lock held by nobody.
        with GATE, _lock:
            if options not in _processes:
                _processes[options] = Process(options)
    return _processes[options]


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _inherited.extend(_processes.values())
    for process in _processes.values():
        process.database.abandon()
    _processes.clear()


def _at_exit() -> None:
    for process in list(_processes.values()):
        try:
            process.close()
        except SQLQueueError:
            logger.debug("could not close %r", process.database, exc_info=True)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
