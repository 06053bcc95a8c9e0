"""A task that retries replaces its own message: both in one transaction, so neither twice nor none."""

from __future__ import annotations

import sys
from typing import NamedTuple

from .envelope import ORIGIN, Envelope
from .messages import Lease

__all__ = ["Replaced", "replaced_by"]


class Replaced(NamedTuple):
    """The lease of a task that retries, and whether its message may be gone though nobody else has settled it."""

    lease: Lease
    if_gone: bool


def replaced_by(envelope: Envelope, *, origin: str, tracks_started: bool) -> Replaced | None:
    """The lease of the running task, if `envelope` is its next retry.

    ``self.retry()`` publishes from inside the task, under the task's own id and with one retry more.
    An early ack that is not tracked has deleted the message already: there is nothing to replace. Nor
    is there if the task came from another place than `origin`, the tables that the retry goes to.
    """
    state = sys.modules.get("celery._state")
    task = state.get_current_task() if state is not None and envelope.task_id else None
    if task is None:
        return None
    request = task.request
    if not task.acks_late and not tracks_started:
        return None
    if request.id != envelope.task_id or envelope.retries != (request.retries or 0) + 1 or request.is_eager:
        return None
    properties = getattr(request, "properties", None) or {}
    if properties.get(ORIGIN) != origin:
        return None
    lease = Lease.parse(properties.get("delivery_tag"))
    # A late ack comes after the task. An early one, in a worker that does not tell us when tasks begin, has deleted it.
    return None if lease is None else Replaced(lease, if_gone=not task.acks_late)
