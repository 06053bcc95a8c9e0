"""Groups and chord headers are stored in one go, and so is whatever else is sent in bulk."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from celery import Celery
from celery.app.routes import MapRoute
from celery.canvas import Signature, group
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from .batching import Batch, together
from .errors import StoreUnavailableError

__all__ = ["bulk_publish", "install", "sent_together"]

#: A group may come from a generator that takes its time: after so many seconds its first tasks are sent.
HOLD_FOR = 0.1

#: Options that say where a message goes, which otherwise its task's name does.
NAMING_QUEUES = frozenset({"queue", "exchange", "routing_key", "exchange_type", "declare", "router", "route_name"})
#: What of Celery's policy for publishing again applies to a batch.
POLICY = ("max_retries", "interval_start", "interval_step", "interval_max")


def bulk_publish(signatures: Iterable[Any], **options: Any) -> list[AsyncResult]:
    """Send many signatures in one transaction: all of them, or, after an error, none.

    Messages keep this order. `options` are those of ``apply_async``, for each of them. Over a
    broker of another kind they are sent one by one.

    Raises kombu's OperationalError if the database cannot be reached, and what ``apply_async`` raises.
    """
    each = list(signatures)
    if not each:
        return []
    app = each[0].app
    with sent_together(app, options), app.producer_or_acquire(options.get("producer")) as producer:
        usual = functools.partial(_usual, app, producer, options, set())
        return [signature.apply_async(**{**options, **usual(signature)}) for signature in each]


def _usual(app: Celery, producer: Any, options: Mapping[str, Any], known: set[str], signature: Any) -> dict[str, Any]:
    """What spares Celery work of which the batch, or an earlier message to the same queue, has done all there is to do."""
    if (
        producer.connection.transport.driver_type != "sqlqueue"
        or options.get("connection")
        or type(signature) is not Signature
    ):
        return {}
    # Nothing leaves before the end, and that is tried again as a whole.
    usual: dict[str, Any] = {"producer": producer, "retry": False}
    given = {**signature.options, **options}
    if given.keys() & NAMING_QUEUES or not all(type(route) is MapRoute for route in app.amqp.router.routes):
        return usual
    # By its name alone it goes where the one before went.
    if signature.task in known:
        usual["declare"] = []
    known.add(signature.task)
    return usual


def sent_together(app: Celery, options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """What is sent inside leaves at the end in one transaction, or not at all after an error. As `bulk_publish`."""
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
