"""Groups and chord headers are stored in one go."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from celery import Celery
from celery.canvas import group
from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from .batching import Batch, together
from .errors import StoreUnavailableError

__all__ = ["install", "sent_together"]

#: A group may come from a generator that takes its time: after so many seconds its first tasks are sent.
HOLD_FOR = 0.1

#: What of Celery's policy for publishing again applies to a batch.
POLICY = ("max_retries", "interval_start", "interval_step", "interval_max")


def sent_together(app: Celery, options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """What is sent inside leaves at the end in one transaction, or not at all after an error."""
    return together(lambda batch: _publish(batch, app, options))


def install() -> None:
    """Let Celery's groups be sent in bulk. Safe to call twice."""
    apply_tasks = group._apply_tasks
    if hasattr(apply_tasks, "__wrapped__"):
        return

    @functools.wraps(apply_tasks)
    def apply_together(
        self: Any, tasks: Any, producer: Any = None, app: Any = None, *args: Any, **kwargs: Any
    ) -> Iterator[Any]:
        app = app or self.app
        with together(lambda batch: _publish(batch, app, kwargs), hold_for=HOLD_FOR):
            yield from apply_tasks(self, tasks, producer, app, *args, **kwargs)

    group._apply_tasks = apply_together


def _publish(batch: Batch, app: Celery, options: Mapping[str, Any]) -> None:
    """As often as the options and the app's settings say, as Celery does for a single task."""
    given = {**(app.conf.task_publish_retry_policy or {}), **(options.get("retry_policy") or {})}
    policy = {name: given[name] for name in POLICY if name in given}
    # A transaction that has failed once is over.
    if batch.is_within or not options.get("retry", app.conf.task_publish_retry):
        policy["max_retries"] = 0
    try:
        retry_over_time(batch.publish, StoreUnavailableError, **policy)
    except StoreUnavailableError as error:
        raise OperationalError(str(error)) from error
