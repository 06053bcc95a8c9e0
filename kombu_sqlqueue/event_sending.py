"""A worker's events, sent together: a commit for each would cost more than the tasks they tell of."""

from __future__ import annotations

import threading
from typing import Any

from celery import bootsteps

__all__ = ["EventsStep"]

#: Events of tasks wait for their like for so many seconds, or until there are so many of them.
WAIT_FOR = 0.05
MANY = 100


class EventsStep(bootsteps.StartStopStep):
    """Lets events of tasks wait for a moment; those of the worker itself are sent at once.

    Celery does so until its event loop comes round, which under load is after each task, and without an event loop not at all.
    """

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._waiting = False

    def start(self, consumer: Any) -> None:
        """Called at each connection, which has a dispatcher of its own."""
        dispatcher, timer, hub = consumer.event_dispatcher, consumer.timer, consumer.hub
        if dispatcher is None:
            return  # it tells nothing at all: --without-gossip --without-heartbeat
        self._waiting = False
        thread = threading.get_ident()
        send_unsent = dispatcher.flush

        def flush(errors: bool = True, groups: bool = True) -> None:
            # Before it, since what comes meanwhile may have missed it.
            self._waiting = False
            send_unsent(errors=errors, groups=False)
            if groups:
                _send_buffered(dispatcher)

        def wait() -> None:
            if self._waiting:
                return
            self._waiting = True
            if hub is None or threading.get_ident() == thread:
                timer.call_after(WAIT_FOR, flush)
            else:
                # The loop may sleep for long, and is woken so only.
                hub.call_soon(timer.call_after, WAIT_FOR, flush)

        dispatcher.buffer_group, dispatcher.buffer_limit = frozenset({"task"}), MANY
        dispatcher.on_send_buffered, dispatcher.flush = wait, flush

    def stop(self, consumer: Any) -> None:
        """Of tasks that end while the worker stops it is told at once: the timer may not come round again."""
        dispatcher = consumer.event_dispatcher
        if dispatcher is not None:
            dispatcher.on_send_buffered = dispatcher.flush
            dispatcher.flush()


def _send_buffered(dispatcher: Any) -> None:
    """As Celery 5.7 does; before, it forgot what threads had added meanwhile, and what could not be sent."""
    with dispatcher.mutex:
        events = dispatcher._group_buffer["task"]
        batch = events[:]
        if batch and dispatcher.producer is not None:
            dispatcher._publish(batch, dispatcher.producer, "task.multi")
            del events[: len(batch)]
