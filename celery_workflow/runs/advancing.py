"""What happens to runs without a task: timers, events on their way to other runs, runs that nothing moves any more.

Each worker looks after all runs; who comes first does it.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any

from celery import bootsteps

from kombu_sqlqueue.errors import ConfigurationError, SchemaError, SQLQueueError
from kombu_sqlqueue.notifier import Subscription
from kombu_sqlqueue.sql.migrate import require

from .keeping import Keeping
from .runtime import Runtime, runtime_of

__all__ = ["Advancer", "AdvancerStep"]

logger = logging.getLogger(__name__)

#: How many events one look takes.
BATCH = 50
#: Seconds until it looks by itself, where it is told of new timers, and where it is not.
LOOK_EVERY = 10.0
LOOK_UNTOLD = 1.0
SHORTEST = 0.001
NOW = timedelta(0)
#: Seconds after which an event that somebody else has promised to deliver is taken over.
SPARE = 0.05
#: Seconds between two tries while the database is away, and between two looks for tables that are not there.
TRY_AGAIN = 1.0
LOOK_FOR_TABLES = 10.0
#: Seconds for which an event that cannot be delivered is left alone.
FAILED_FOR = 30.0


class Advancer:
    """One thread of a worker."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._keeping = Keeping(runtime)
        self._stopping = threading.Event()
        self._subscription: Subscription | None = None
        #: Events that have failed, and until when they are left alone.
        self._failed: dict[int, float] = {}
        #: Whether somebody has been told that there are no tables.
        self._told = False
        self._thread = threading.Thread(target=self._run, name="workflow-advancer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let it finish what it is doing, up to 5 seconds."""
        self._stopping.set()
        if self._subscription is not None:
            self._subscription.poke()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._round()
            except SchemaError as error:
                self._tell_of_tables(error)
                self._stopping.wait(LOOK_FOR_TABLES)
            except ConfigurationError as error:
                logger.debug("no workflows here: %s", error)
                return
            except SQLQueueError as error:
                logger.warning("could not look after workflows, trying again: %s", error)
                self._stopping.wait(TRY_AGAIN)
            except Exception:
                logger.exception("unexpected error while looking after workflows")
                self._stopping.wait(TRY_AGAIN)

    def _tell_of_tables(self, error: SchemaError) -> None:
        """A worker that declares workflows would seem to be ready for them; many others have none, and on SQLite the first
        start makes the tables."""
        database = self._runtime.home.database
        come_by_themselves = database.options.auto_migrate or database.dialect.migrates_itself
        if self._runtime.workflows and not come_by_themselves and not self._told:
            self._told = True
            logger.warning("workflows cannot run here yet: %s", error)
        else:
            logger.debug("no workflows here: %s", error)

    def _round(self) -> None:
        """Do what is due, and wait for what is due next."""
        runtime = self._runtime
        if self._subscription is None:
            # A worker makes no tables: most have no workflows.
            require(runtime.home.database, runtime.home.line)
            self._subscription = runtime.process.notifier.subscribe([runtime.topic])
        self._keeping.run()
        until = runtime.store.next_due()
        if until is not None and until <= NOW and (due := self._due()):
            if not sum(self._deliver(event_id) for event_id in due):
                # Others are at it.
                self._stopping.wait(SPARE)
            return
        pauses = [self._keeping.due_in()]
        if until is not None:
            # What has failed is due, but left alone for a while.
            pauses.append(max(until.total_seconds(), TRY_AGAIN if self._failed else SHORTEST))
        if self._stopping.is_set():
            return
        if self._subscription.announces:
            self._subscription.wait(min(LOOK_EVERY, *pauses))
        else:
            # It would be woken by whatever changes, and there is much that does.
            self._stopping.wait(min(LOOK_UNTOLD, *pauses))

    def _due(self) -> list[int]:
        """What is due, but for what has just failed."""
        now = time.monotonic()
        self._failed = {event_id: until for event_id, until in self._failed.items() if until > now}
        due = self._runtime.store.due(BATCH + len(self._failed))
        return [event_id for event_id in due if event_id not in self._failed]

    def _deliver(self, event_id: int) -> int:
        """Whatever one of them meets, it is not to keep the others waiting."""
        try:
            return self._runtime.deliver([event_id])
        except SQLQueueError:
            raise
        except Exception:
            logger.exception("an event of a workflow cannot be delivered, trying again in %.0f s", FAILED_FOR)
            self._failed[event_id] = time.monotonic() + FAILED_FOR
            return 0


class AdvancerStep(bootsteps.StartStopStep):
    """Starts the thread with the worker."""

    # A child of the pool would inherit the connection that it makes.
    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._advancer: Advancer | None = None

    def start(self, worker: Any) -> None:
        self._advancer = Advancer(runtime_of(worker.app))
        self._advancer.start()

    def stop(self, worker: Any) -> None:
        if self._advancer is not None:
            self._advancer.stop()
            self._advancer = None

    def terminate(self, worker: Any) -> None:
        """A worker within another program may end so, and that goes on."""
        self.stop(worker)
