"""The app under test with a task for every combination of settings, and every end that one can come to."""

from __future__ import annotations

import os
import signal
import time

from celery import Task

from .endings import COMBINATIONS
from .tasks import app, mark

__all__ = ["app"]


def end(self: Task, how: str) -> None:
    mark(f"{how}: {self.name}")
    if how == "kill":
        # Should its process die before Celery's pool has heard that the task began, the pool gives it to another.
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        raise MemoryError
    if how == "fail":
        raise ValueError(how)
    time.sleep(60)


for settings in COMBINATIONS:
    app.task(
        bind=True,
        name=settings.name,
        acks_late=settings.late,
        acks_on_failure=settings.acks_on_failure,
        acks_on_timeout=settings.acks_on_timeout,
        reject_on_worker_lost=settings.reject,
        retry_on_worker_lost=settings.retry,
        max_retries=1,
        default_retry_delay=0,
    )(end)
