"""What a Celery worker needs beyond a transport, added to it without a line of the user's code.

Celery tells a transport that a message is acked, not whether its task is still to run: this step
watches the pool to know. It also records the failure of tasks that died with their worker.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import bootsteps
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from .channel import Channel
from .envelope import OWNER
from .errors import SQLQueueError
from .keeper import Chore
from .messages import Lease
from .options import hide_password
from .reporting import Reporter
from .revoking import RevocationStore
from .unhandled import Unhandled

__all__ = ["NoPrefetchStep", "RevokedStep", "SQLQueueStep"]

logger = logging.getLogger(__name__)

#: Seconds between two times that a worker is told what was revoked: less than Celery keeps it in mind.
REMIND_EVERY = min(3600.0, state.REVOKE_EXPIRES / 2)
#: Seconds between two looks for parked messages whose task this worker knows.
UNPARK_EVERY = 10.0


class SQLQueueStep(bootsteps.StartStopStep):
    """Ties the worker's pool to the leases of its messages."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        #: Tag and channel of each message whose task the pool has.
        self._in_pool: dict[str, Any] = {}
        self._reporter: Reporter | None = None
        self._is_solo = isinstance(consumer.pool, SoloPool)
        watch_pool(consumer.pool, self._on_handed, self._on_ended)
        self._unhandled = Unhandled(consumer)

    def start(self, consumer: Any) -> None:
        """Called at each connection: the keeper outlives it, the connection's face does not."""
        connection = consumer.connection
        connection.transport.tasks_are_apart = isinstance(consumer.pool, PreforkPool)
        keeper = connection.transport.keeper
        keeper.running = self._running
        messages = connection.transport.process.messages
        if self._reporter is None:
            self._reporter = Reporter(consumer.app, messages)
            self._reporter.start()
            keeper.add_chore(Chore(lambda: self._unhandled.unpark(messages), UNPARK_EVERY))
        self._unhandled.unpark(messages)
        keeper.on_dead = self._reporter.wake
        # `inspect stats` and Flower print what info() returns.
        told = {name: _without_password(value) for name, value in connection.info().items()}
        connection.info = lambda: dict(told)

    def close(self, consumer: Any) -> None:
        """The worker is stopping: others may have at once what our pool will not run."""
        if consumer.connection is not None:
            for channel in list(consumer.connection.transport.channels):
                channel.release_all_but(self._in_pool)

    def shutdown(self, consumer: Any) -> None:
        if self._reporter is not None:
            self._reporter.stop()
            self._reporter = None

    def _running(self) -> set[Lease]:
        running = {request.message.delivery_tag for request in state.active_requests}
        for tag in set(self._in_pool) - running:
            self._in_pool.pop(tag, None)  # the pool dropped it when the connection was lost
        return {lease for tag in running if (lease := Lease.parse(tag)) is not None}

    def _on_handed(self, request: Any) -> None:
        message = request.message
        channel = message.channel
        self._in_pool[message.delivery_tag] = channel
        channel.begin(
            message.delivery_tag,
            early=not request.task.acks_late,
            at_once=self._is_solo,
            owned=bool(message.headers.get(OWNER)),
        )

    def _on_ended(self, request: Any, *, well: bool) -> None:
        message = request.message
        self._in_pool.pop(message.delivery_tag, None)
        message.channel.end(message.delivery_tag, well=well)
        if message.channel.qos.wanted is not None:
            message.channel.make_room()


class NoPrefetchStep(bootsteps.StartStopStep):
    """Honours worker_disable_prefetch: a worker takes a message only when a slot of its pool is free for it."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        return bool(consumer.app.conf.get("worker_disable_prefetch"))

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        # Celery does this for Redis only, and would say that it does nothing here.
        logging.getLogger("celery.worker.consumer.tasks").addFilter(
            lambda record: not str(record.msg).startswith("worker_disable_prefetch is only supported for Redis")
        )

    def start(self, consumer: Any) -> None:
        def free_slots() -> int:
            slots = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
            return int(slots) - len(state.reserved_requests)

        consumer.task_consumer.channel.qos.wanted = free_slots


class RevokedStep(bootsteps.StartStopStep):
    """Lets the worker know what was revoked while it was away: Celery itself then ends such tasks."""

    # Later commands reach the worker's mailbox, and no task is taken in before the steps have started.
    requires = ("celery.worker.consumer.control:Control",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._again: Any = None

    def start(self, consumer: Any) -> None:
        """Called at each connection, and from then on often enough: of many, Celery itself forgets the older."""
        store = consumer.connection.transport.process.revocations
        self._remember(store)
        self._again = consumer.timer.call_repeatedly(REMIND_EVERY, self._remind, (store,))

    def stop(self, consumer: Any) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _remind(self, store: RevocationStore) -> None:
        try:
            self._remember(store)
        except SQLQueueError as error:
            logger.warning("could not read again what was revoked: %s", error)

    def _remember(self, store: RevocationStore) -> None:
        for revocation in store.revoked():
            if revocation.stamp:
                stamps = state.revoked_stamps.setdefault(revocation.stamp, [])
                if (stamp := json.loads(revocation.value)) not in stamps:
                    stamps.append(stamp)
            else:
                state.revoked.add(revocation.value)


def watch_pool(pool: Any, on_handed: Callable[[Any], None], on_ended: Callable[..., None]) -> None:
    """Call `on_handed` with each request the pool gets, and `on_ended` when its task is over, `well` or not.

    However a task ends, its pool calls one of the request's own callbacks.
    """
    apply_async = pool.apply_async

    def watched(target: Any, *args: Any, callback: Any = None, **options: Any) -> Any:
        request: Any = getattr(callback, "__self__", None)
        if not _is_ours(request):
            return apply_async(target, *args, callback=callback, **options)

        def ending(notify: Callable[..., Any]) -> Callable[..., Any]:
            def notify_and_end(*a: Any, **k: Any) -> Any:
                try:
                    return notify(*a, **k)
                except MemoryError:
                    # The task's own process ran out of it, told so and goes on. Celery would end the
                    # whole worker for that, unacked message in hand, and so one worker after the other.
                    settle_failed(request)
                    return None
                finally:
                    on_ended(request, well=_is_success(*a))

            return notify_and_end

        def succeeded(outcome: Any, **k: Any) -> Any:
            # A task that raised SystemExit in a thread of ours: Celery calls the wrong callback for it.
            if isinstance(outcome, ExceptionInfo):
                return request.on_failure(outcome)
            return callback(outcome, **k)

        def timed_out(soft: bool, timeout: float) -> Any:
            notify = options_timeout if soft else ending(options_timeout)
            return notify(soft, timeout)

        options_timeout = options.pop("timeout_callback", None)
        options_error = options.pop("error_callback", None)
        on_handed(request)
        return apply_async(
            target,
            *args,
            callback=ending(succeeded),
            error_callback=ending(options_error),
            timeout_callback=timed_out,
            **options,
        )

    pool.apply_async = watched


def _is_success(outcome: Any = None, *_: Any) -> bool:
    """Whether this is what a pool tells of a task that returned: (failed, result, seconds)."""
    return isinstance(outcome, tuple) and not outcome[0]


def settle_failed(request: Any) -> None:
    """Ack a failed task's message as its settings say; does nothing if it was acked early."""
    task = request.task
    acks = getattr(task, "acks_on_failure", None)  # a setting of its own since Celery 5.7
    if not task.acks_late or (task.acks_on_failure_or_timeout if acks is None else acks):
        request.acknowledge()
    else:
        request.reject(requeue=False)


def _is_ours(request: Any) -> bool:
    return isinstance(getattr(getattr(request, "message", None), "channel", None), Channel)


def _without_password(value: Any) -> Any:
    if isinstance(value, str):
        return hide_password(value)
    if isinstance(value, list | tuple):
        return [_without_password(each) for each in value]
    return value
