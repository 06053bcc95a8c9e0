"""Many messages of one task: the first is made by Celery, the others in its image, with other arguments.

Celery takes some 100 µs to make a message, most of it to find out again what it found out for the one before. Only what is
certain to be the same is done so: a plain task with options that compare equal, that nothing listens to or alters on its way.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

from celery import Celery, signals
from celery.app.routes import MapRoute
from celery.app.task import Task
from celery.backends.base import Backend
from celery.canvas import Signature
from celery.result import AsyncResult
from celery.utils.saferepr import saferepr
from kombu import Producer
from kombu.serialization import dumps
from kombu.utils.uuid import uuid

from .batching import Batch, Newest
from .envelope import as_bytes, as_text
from .messages import NewMessage
from .store import MessageStore

__all__ = ["Mould", "is_sent_plainly", "kind_of", "may_mould", "mould_of"]

#: Options that do to each message what they did to the first.
COPIED = frozenset(
    {"queue", "exchange", "routing_key", "priority", "ignore_result", "time_limit", "soft_time_limit", "shadow"}
)
#: Told of each message, and free to alter it.
LISTENERS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)


class Mould:
    """What the messages of one task with the same options have in common."""

    def __init__(
        self, task: Task, store: MessageStore, message: NewMessage, envelope: dict[str, Any], ignored: bool | None
    ) -> None:
        self._task = task
        self._ignored = ignored
        self._store = store
        self._message = message
        self._envelope = envelope
        *_, self._embedded = json.loads(message.body)
        self._is_root = self._envelope["headers"]["root_id"] == message.task_id
        app = task.app
        self._sizes = app.amqp.argsrepr_maxsize, app.amqp.kwargsrepr_maxsize
        self._levels = app.conf.task_repr_maxlevels

    def add(self, batch: Batch, args: Any, kwargs: Any, limit: int | None) -> AsyncResult | None:
        """Add a message with these arguments; None if Celery would refuse their kind, or it has more bytes than the limit.

        Raises what Celery raises for arguments that the task does not take, or that cannot be serialized.
        """
        args, kwargs = args or (), kwargs or {}
        if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
            return None
        if self._task.typing:
            self._task.__header__(*args, **kwargs)
        task_id = uuid()
        _, _, body = dumps((args, kwargs, self._embedded), "json")
        headers = self._envelope["headers"]
        headers["id"] = self._envelope["properties"]["correlation_id"] = task_id
        headers["argsrepr"] = saferepr(args, self._sizes[0], maxlevels=self._levels)
        headers["kwargsrepr"] = saferepr(kwargs, self._sizes[1], maxlevels=self._levels)
        if self._is_root:
            headers["root_id"] = task_id
        encoded, text = as_bytes(body), as_text(self._envelope)
        if limit is not None and len(encoded) + len(text) > limit:
            return None
        batch.add(self._store, [replace(self._message, body=encoded, envelope=text, task_id=task_id)])
        result: AsyncResult = self._task.AsyncResult(task_id)
        result.ignored = self._ignored
        return result


def may_mould(app: Celery) -> bool:
    """Whether nobody but Celery itself has a part in what a message of this app is made of."""
    conf, send_task = app.conf, vars(app).get("send_task")
    return (
        not any(signal.receivers for signal in LISTENERS)
        and not (conf.task_always_eager or conf.task_send_sent_event or conf.task_compression)
        and conf.task_protocol == 2
        # Others may look at the arguments.
        and all(type(route) is MapRoute for route in app.amqp.router.routes)
        and type(app.backend).on_task_call is Backend.on_task_call
        and (send_task is None or getattr(send_task, "alters_no_message", False))
        and all(map(_is_untouched, _way(app)))
    )


def is_sent_plainly(app: Celery, signature: Any) -> bool:
    """Whether Celery itself sends it, by this app and before ``apply_async`` returns: others may keep it, with its options."""
    if type(signature) is not Signature:
        return False
    task = _task_of(signature)
    return bool(signature.app == app) if task is None else bool(task.app == app) and _is_plain(task)


def kind_of(app: Celery, signature: Any, options: Mapping[str, Any]) -> Hashable | None:
    """Equal for signatures whose messages, sent with these options, differ only by their arguments; None if that cannot be known."""
    if not is_sent_plainly(app, signature):
        return None
    # Celery takes what was given as None for not given.
    given = signature.options | {name: value for name, value in options.items() if value is not None}
    task = _task_of(signature)
    if not COPIED.issuperset(given) or task is None or task._dump_pydantic_arguments is not None:
        return None
    kind = task, frozenset(given.items())
    try:
        hash(kind)
    except TypeError:
        return None
    return kind


def mould_of(task: Task, result: AsyncResult, newest: Newest) -> Mould | None:
    """Of the message that was just added to a batch; None if it is not that of the result, or others would differ by more."""
    store, messages = newest
    if [message.task_id for message in messages] != [result.id]:
        return None
    [message] = messages
    envelope = json.loads(message.envelope)
    moves = message.due_at is not None or envelope["headers"].get("expires") is not None
    # Others call theirs JSON, too, and know more or other things.
    is_json = (task.serializer or task.app.conf.task_serializer) == "json" and envelope["content-type"] == "application/json"
    if moves or not is_json or "compression" in envelope["headers"]:
        return None
    return Mould(task, store, message, envelope, result.ignored)


def _way(app: Celery) -> tuple[Any, ...]:
    """What a message passes through, as it is just now."""
    in_app = type(app).send_task, type(app.amqp).as_task_v2
    return Signature.apply_async, Task.apply_async, *in_app, Producer.publish


def _task_of(signature: Signature) -> Task | None:
    try:
        return signature.type
    except KeyError:
        return None  # sent by its name


def _is_plain(task: Task) -> bool:
    """Whether neither its class nor itself has a say in how it is sent."""
    its, own = type(task), vars(task)
    plain = its.apply_async is Task.apply_async and its.shadow_name is Task.shadow_name
    return plain and "apply_async" not in own and "shadow_name" not in own


def _is_untouched(function: Any) -> bool:
    """Not somebody's wrapper around it, such as that of a tracer."""
    module = str(getattr(function, "__module__", ""))
    return (
        type(function) is FunctionType and not hasattr(function, "__wrapped__") and module.startswith(("celery.", "kombu."))
    )
