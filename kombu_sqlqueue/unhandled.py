"""Messages that a worker can do nothing with: kept for one that can, or for an operator, never thrown away."""

from __future__ import annotations

import logging
from typing import Any

from celery import signals

from .channel import Channel
from .messages import Reason
from .store import MessageStore

__all__ = ["Unhandled"]

logger = logging.getLogger(__name__)

#: How many parked messages one transaction makes ready.
BATCH = 100


class Unhandled:
    """Takes the place of what Celery's consumer does with unknown tasks and undecodable messages.

    An unknown task is parked: no result, event or errback tells of it, since a worker that knows
    it may come. Messages of another broker than ours are left to Celery.
    """

    def __init__(self, consumer: Any) -> None:
        self._app = consumer.app
        self._consumer = consumer
        self._celerys_unknown_task = consumer.on_unknown_task
        self._celerys_decode_error = consumer.on_decode_error
        consumer.on_unknown_task = self.on_unknown_task
        consumer.on_decode_error = self.on_decode_error

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Park the message. One that hides the name of its task would never be found again: Celery rejects it."""
        name, id = (message.headers or {}).get("task"), (message.headers or {}).get("id")
        if name is None or not isinstance(message.channel, Channel):
            self._celerys_unknown_task(body, message, exc)
            return
        logger.error("task %s[%s] is unknown here; it is parked until a worker comes that knows it", name, id)
        message.channel.set_aside(message.delivery_tag, Reason.UNKNOWN_TASK)
        signals.task_unknown.send(sender=self._consumer, message=message, exc=exc, name=name, id=id)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Keep the message as dead."""
        if not isinstance(message.channel, Channel):
            self._celerys_decode_error(message, exc)
            return
        logger.critical(
            "message %s (%s, %s) cannot be decoded; it is kept as dead: %r",
            message.delivery_tag,
            message.content_type,
            message.content_encoding,
            exc,
        )
        message.channel.set_aside(message.delivery_tag, Reason.UNDECODABLE)

    def unpark(self, store: MessageStore) -> None:
        """Make ready what was parked for want of a task that this worker knows."""
        while found := store.unpark(list(self._app.tasks), limit=BATCH):
            logger.info("%d parked messages are ready again: their tasks are known here", found)
            if found < BATCH:
                return
