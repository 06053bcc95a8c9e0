"""Sending many tasks in one go."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from celery import Celery
from celery.result import AsyncResult

from .batching import Batch, current_batch
from .channel import Channel
from .grouping import sent_together
from .moulding import Mould, is_sent_plainly, kind_of, may_mould, mould_of

__all__ = ["bulk_publish"]


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
        batch = current_batch()
        assert batch is not None
        if options.get("connection") or not isinstance(producer.channel, Channel):
            return [signature.apply_async(**options) for signature in each]
        bulk = _Bulk(app, producer, batch, options)
        return [bulk.send(signature) for signature in each]


class _Bulk:
    """Sends signatures to a batch, with as little of Celery's work as may be."""

    def __init__(self, app: Celery, producer: Any, batch: Batch, options: Mapping[str, Any]) -> None:
        self._app = app
        self._batch = batch
        self._options = options
        # Nothing leaves before the end, and that is tried again as a whole.
        self._usual = {**options, "producer": producer, "retry": False}
        self._moulds: dict[Hashable, Mould | None] = {}
        self._parent = app.current_worker_task
        channel: Channel = producer.channel
        self._limit = channel.max_message_bytes
        self._may_mould = may_mould(app) and not channel.is_in_transaction

    def send(self, signature: Any) -> AsyncResult:
        kind = kind_of(self._app, signature, self._options) if self._may_mould else None
        if kind is None:
            return self._send(signature)
        if kind in self._moulds:
            mould = self._moulds[kind]
            result = mould and mould.add(self._batch, signature.args, signature.kwargs, self._limit)
            if result is None:
                return self._send(signature)
            if self._parent is not None:
                self._parent.add_trail(result)
            return result
        result = self._send(signature)
        newest = self._batch.newest
        self._moulds[kind] = None if newest is None else mould_of(signature.type, result, newest)
        return result

    def _send(self, signature: Any) -> Any:
        # A canvas hands its options on to tasks that are sent later, and so may a task: the producer is not ours by then.
        plain = is_sent_plainly(self._app, signature)
        return signature.apply_async(**(self._usual if plain else self._options))
