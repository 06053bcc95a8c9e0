"""The app under test with the one task of the soak, whose runs are all written down."""

from __future__ import annotations

import time

from celery import Task
from celery.exceptions import Retry

from ..celery.tasks import app
from .journal import note

__all__ = ["app"]

#: Each so manieth task retries once.
RETRIES = 15


@app.task(bind=True, name="soak", acks_late=True, reject_on_worker_lost=True, max_retries=1)
def soak(self: Task, number: int, seconds: float) -> int:
    request = self.request
    me = {
        "lease": request.properties["delivery_tag"],
        "worker": request.hostname.partition("@")[0],
        "retries": request.retries,
    }
    note("start", number, **me)
    time.sleep(seconds)
    if number % RETRIES == 0 and not request.retries:
        try:
            self.retry(countdown=0.5)
        except Retry:
            note("retry", number, **me)
            raise
        except Exception:
            note("broken", number, **me)
            raise
    note("end", number, **me)
    return number
