"""A task that retries replaces its own message: both in one transaction, so neither twice nor none."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from .envelope import ORIGIN, Envelope
from .messages import Lease

__all__ = ["Replaced", "is_retry", "replaced_by"]


class Replaced(NamedTuple):
    """The lease of a task that retries, and whether its message may be gone though nobody else has settled it."""

    lease: Lease
    if_gone: bool


def replaced_by(envelope: Envelope, *, origin: str, tracks_started: bool) -> Replaced | None:
    """The lease of the running task, if `envelope` is its next retry.

    An early ack that is not tracked has deleted the message already: there is nothing to replace. Nor
    is there if the task came from another place than `origin`, the tables that the retry goes to.
    """
    if envelope.owner is not None or not is_retry(envelope.task_id, envelope.retries):
        # Who owns a message settles it, too.
        return None
    task = _current_task()
    if not task.acks_late and not tracks_started:
        return None
    properties = getattr(task.request, "properties", None) or {}
    if properties.get(ORIGIN) != origin:
        return None
    lease = Lease.parse(properties.get("delivery_tag"))
    # A late ack comes after the task. An early one, in a worker that does not tell us when tasks begin, has deleted it.
    return None if lease is None else Replaced(lease, if_gone=not task.acks_late)


def is_retry(task_id: Any, retries: Any) -> bool:
    """Whether a message with this id and count is the next retry of the running task.

    ``self.retry()`` publishes from inside the task, under the task's own id and with one retry more.
    """
    task = _current_task() if task_id else None
    if task is None:
        return False
    request = task.request
    return request.id == task_id and retries == (request.retries or 0) + 1 and not request.is_eager


def _current_task() -> Any:
    state = sys.modules.get("celery._state")
    return state.get_current_task() if state is not None else None
