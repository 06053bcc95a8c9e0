"""Chores that any worker does now and then: looking for runs that nothing moves, deleting old ones."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from kombu_sqlqueue.errors import ConfigurationError

from .reconciling import Reconciler
from .runtime import Runtime

__all__ = ["RETENTION", "Keeping"]

logger = logging.getLogger(__name__)

#: Seconds between two looks for runs that stand still, and how long nothing has to have happened to one.
RECONCILE_EVERY = 60.0
QUIET_FOR = timedelta(seconds=60)
#: Seconds between two rounds of deleting, and how many runs one deletes.
PRUNE_EVERY = 300.0
PRUNE_BATCH = 200
#: How long a run that has ended is kept, unless the setting `workflow_retention` says otherwise (None for ever).
RETENTION = timedelta(days=30)


class Keeping:
    """The chores of one worker. Raises ConfigurationError for a setting that cannot be."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reconciler = Reconciler(runtime)
        self._kept_for = retention_of(runtime.app.conf)
        # Not at the start: what a crash has left is somebody's whose lease has not ended yet.
        self._reconcile_at = time.monotonic() + RECONCILE_EVERY
        self._prune_at = time.monotonic() + PRUNE_EVERY

    def due_in(self) -> float:
        """Seconds until there is something to do."""
        return max(0.0, min(self._reconcile_at, self._prune_at) - time.monotonic())

    def run(self) -> None:
        """Do what is due."""
        if time.monotonic() >= self._reconcile_at:
            self._reconcile_at = time.monotonic() + RECONCILE_EVERY
            self._reconciler.run(quiet_for=QUIET_FOR)
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_EVERY
            if self._kept_for is not None:
                self._runtime.store.prune(older_than=self._kept_for, limit=PRUNE_BATCH)


def retention_of(conf: Any) -> timedelta | None:
    """The setting: a timedelta, or seconds, or None for ever. Raises ConfigurationError for anything else."""
    given = conf.get("workflow_retention", RETENTION)
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = timedelta(seconds=given)
    if given is not None and (not isinstance(given, timedelta) or given < timedelta(0)):
        raise ConfigurationError(
            f"workflow_retention is {given!r}, but must be a number of seconds, a timedelta, or None to keep runs for ever"
        )
    return given
