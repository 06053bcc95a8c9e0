"""The workflows of an app in this process: its store, and what follows when something happens to a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from kombu_sqlqueue.errors import StoreUnavailableError
from kombu_sqlqueue.messages import Lease
from kombu_sqlqueue.process import Process, process_for
from kombu_sqlqueue.sql.migrate import ensure

from ..engine.decision import Decision
from ..engine.events import Event
from ..errors import WorkflowError
from ..home import Home
from ..publishing import check_reach
from ..sql.runs import SQLRunStore
from .effects import AppEffects
from .serializing import JsonSerializer
from .store import TOPIC, Happening, NewRun, Written
from .telling import tell

__all__ = ["Runtime", "runtime_of"]

#: The attribute of an app that has workflows.
ATTRIBUTE = "workflow_runtime"
#: How many events that follow from each other are delivered by who caused them; a worker does the rest.
MOST_AT_ONCE = 200


def runtime_of(app: Celery) -> Runtime:
    """The workflows of an app in this process."""
    runtime: Runtime | None = getattr(app, ATTRIBUTE, None)
    if runtime is None:
        runtime = Runtime(app)
        setattr(app, ATTRIBUTE, runtime)
    return runtime


class Runtime:
    """Making one touches nothing. Serves all threads of a process, and its children after a fork."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        #: The workflows that this program has declared, by name.
        self.workflows: dict[str, Any] = {}
        self._home: Home | None = None
        self._prepared: Process | None = None
        self._store: SQLRunStore | None = None

    @property
    def home(self) -> Home:
        """Where the runs are. Raises ConfigurationError where that cannot be, or the broker does not reach it."""
        if self._home is None:
            home = Home(self.app)
            check_reach(home)
            self._home = home
        return self._home

    @property
    def process(self) -> Process:
        return process_for(self.home.options)

    @property
    def messages(self) -> Any:
        return self.process.messages

    @property
    def store(self) -> SQLRunStore:
        """The runs. The first use of each process checks the tables.

        Raises SchemaError if they are missing or old; it names the command to run.
        """
        process = self.process
        if self._store is None or process is not self._prepared:
            process.prepare()
            ensure(process.database, self.home.line)
            self._store = SQLRunStore(process.database, self.home.tables, JsonSerializer())
            self._prepared = process
        return self._store

    @property
    def topic(self) -> str:
        """What is announced when an event has been stored that is due later."""
        return TOPIC.format(prefix=self.home.prefix)

    @property
    def backend_is_here(self) -> bool:
        """Whether results are written in the transactions of the runs."""
        return getattr(self.app.backend, "database_options", None) == self.home.options

    def forget_result(self, run_id: str) -> None:
        """Let the result backend know nothing of the run."""
        # Some can do nothing, such as that of an app without results.
        with suppress(NotImplementedError):
            self.app.backend.forget(run_id)

    def now(self) -> datetime:
        """This machine's time, in UTC."""
        return datetime.now(UTC)

    # -- changing -------------------------------------------------------------------------

    def create(self, runs: Sequence[NewRun]) -> list[bool]:
        """Create and start these runs; which of them are new. Takes part in a transaction that was lent to the caller.

        Raises WorkflowError for an app that runs tasks where they are called.
        """
        if self.app.conf.task_always_eager:
            raise WorkflowError(
                "task_always_eager is set: runs need a worker, or celery_workflow.testing.WorkflowHarness, which runs them in"
                " this process"
            )
        with self._effects() as effects:
            written = self.store.create(runs, effects)
        self._follow(effects, [each for each in written if each is not None])
        return [each is not None for each in written]

    def give(
        self,
        run_id: str,
        happening: Happening,
        *,
        lease: Lease | None = None,
        record: Callable[[Decision], object] | None = None,
    ) -> Written:
        """Let something happen to a run, and what is due by that, too. As `RunStore.give`."""
        with self._effects(lease=lease, record=record) as effects:
            written = self.store.give(run_id, happening, effects)
        self._follow(effects, [written])
        return written

    def tell(self, run_id: str, event: Callable[[int], Event]) -> Decision:
        """Give an event that needs only the time."""
        return self.give(run_id, lambda now, view: event(now)).decision

    def deliver(self, event_ids: Sequence[int]) -> int:
        """Deliver stored events, and those that follow from them; how many that were."""
        return self._deliver(event_ids)[0]

    def _deliver(self, event_ids: Sequence[int]) -> tuple[int, bool]:
        """How many were delivered, and whether some are left: too many, or of runs that somebody has just locked."""
        due, done, left = deque(event_ids), 0, False
        while due and done < MOST_AT_ONCE:
            with self._effects() as effects:
                written = self.store.deliver(due.popleft(), effects)
            effects.committed()
            if written is None:
                left = True
            else:
                tell(self.app, written.decision)
                done += 1
                due.extend(written.due)
        return done, left or bool(due)

    def _follow(self, effects: AppEffects, written: Sequence[Written]) -> None:
        database = self.home.database
        due = [event for each in written for event in each.due]
        if not database.in_transaction:
            effects.committed()
            for each in written:
                tell(self.app, each.decision)
            if due and self._deliver(due)[1]:
                # Nobody else knows of them.
                database.run(lambda tx: database.announce(tx, [self.topic]))
        elif due:
            # It is the caller who commits: a worker hears of it then.
            database.run(lambda tx: database.announce(tx, [self.topic]), joins=True)

    @contextmanager
    def _effects(self, **given: Any) -> Iterator[AppEffects]:
        """Connected to the broker, which must not happen within a transaction. With an outbox nobody needs the broker."""
        if self.home.has_outbox:
            yield AppEffects(self, None, **given)
            return
        with self.app.producer_or_acquire() as producer:
            try:
                producer.connection.ensure_connection(max_retries=1, interval_start=0)
            except OperationalError as error:
                # The broker is our database: who waits for that to come back waits for this, too.
                raise StoreUnavailableError(str(error)) from error
            yield AppEffects(self, producer, **given)
