"""Celery's beat on a database: ``celery beat -S celery_workflow.beat:SQLScheduler``, as many as you like."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.beat import Scheduler
from kombu.exceptions import OperationalError

from kombu_sqlqueue.errors import StoreUnavailableError
from kombu_sqlqueue.sql.dialect import Capability, Waker

from .home import Home
from .schedules.api import Schedules
from .schedules.firing import Firing

__all__ = ["SQLScheduler"]

logger = logging.getLogger(__name__)

#: How long to sleep at most, in seconds, where changes wake us, and where they do not.
SLEEP = 10.0
POLL = 1.0
#: How long to wait, in seconds, for a database that is away.
AWAY = 1.0
#: For how long ticks are remembered, and how often, in seconds, and how many old ones are deleted at a time.
RETENTION = timedelta(days=30)
PRUNE_EVERY = 60.0
PRUNE_BATCH = 1000


class SQLScheduler(Scheduler):
    """Fires the schedules of a database, among them those of `beat_schedule`. Beats may come and go at any time."""

    max_interval = SLEEP

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        self._home: Home | None = None
        self._firing: Firing | None = None
        self._waker: Waker | None = None
        self._pruned_at = time.monotonic()
        super().__init__(app, *args, **kwargs)

    @property
    def info(self) -> str:
        """Shown by beat as it starts."""
        home = self._home or Home(self.app)
        return f"    . db -> {home.options.safe_url}"

    def setup_schedule(self) -> None:
        """Find out where the schedules are. The database is asked only at the first tick, since it may be away now."""
        self._home = Home(self.app)
        self.install_default_entries(self.app.conf.beat_schedule)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Fire what is due, then wait until something else is, or something has changed."""
        try:
            self._begin().run_once()
            self._prune()
            self._wait()
        except (StoreUnavailableError, OperationalError) as error:
            logger.warning("the database of the schedules is away, trying again: %s", error)
            time.sleep(AWAY)
        return 0.0

    def close(self) -> None:
        """Give connections back."""
        if self._firing is not None:
            self._firing.close()
        if self._waker is not None:
            self._waker.close()
            self._waker = None
        super().close()

    def _begin(self) -> Firing:
        """The first time, see that the tables are there, and bring the rows to what the configuration says."""
        if self._firing is None:
            assert self._home is not None
            firing = Firing(self.app, self._home)
            for change in Schedules(self.app).sync({**self.app.conf.beat_schedule, **self.data}):
                logger.info("beat_schedule: %s", change)
            self._waker = self._open_waker(self._home)
            self._firing = firing
        return self._firing

    def _open_waker(self, home: Home) -> Waker | None:
        database = home.database
        if not (home.options.listen and Capability.LISTEN_NOTIFY in database.dialect.capabilities):
            return None
        return database.dialect.waker(database.engine, home.tables)  # type: ignore[arg-type]

    def _wait(self) -> None:
        assert self._home is not None
        due = self._home.store().next_due()
        longest = self.max_interval if self._waker is not None else min(self.max_interval, POLL)
        seconds = longest if due is None else min(due.total_seconds(), longest)
        if seconds <= 0:
            return
        if self._waker is None:
            time.sleep(seconds)
        else:
            self._waker.wait(seconds)

    def _prune(self) -> None:
        if time.monotonic() - self._pruned_at > PRUNE_EVERY:
            self._pruned_at = time.monotonic()
            assert self._home is not None
            self._home.store().prune(older_than=RETENTION, limit=PRUNE_BATCH)
