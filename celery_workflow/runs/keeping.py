"""Chores that any worker does now and then: looking for runs that nothing moves, deleting old ones."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

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
    """The chores of one worker."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reconciler = Reconciler(runtime)
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
            kept_for = retention_of(self._runtime.app.conf)
            if kept_for is not None:
                self._runtime.store.prune(older_than=kept_for, limit=PRUNE_BATCH)


def retention_of(conf: Any) -> timedelta | None:
    """The setting: a timedelta, or seconds, or None for ever."""
    given = conf.get("workflow_retention", RETENTION)
    return timedelta(seconds=given) if isinstance(given, int | float) else given
