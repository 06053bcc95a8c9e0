"""A task that retries replaces its own message: both in one transaction, so neither twice nor none."""

from __future__ import annotations

import sys

from .envelope import ORIGIN, Envelope
from .messages import Lease

__all__ = ["replaced_by"]


def replaced_by(envelope: Envelope, *, origin: str, tracks_started: bool) -> Lease | None:
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
    return Lease.parse(properties.get("delivery_tag"))
