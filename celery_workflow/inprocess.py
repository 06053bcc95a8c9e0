"""Runs a task in this process as a worker would, and says what became of it. Nothing is published or stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore
from kombu import Connection, Producer
from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads

__all__ = ["Done", "Failed", "Ignored", "Replaced", "Retry", "Sent", "run_task", "through_serializer"]


@dataclass(frozen=True)
class Done:
    result: Any


@dataclass(frozen=True)
class Failed:
    exception: BaseException
    traceback: str


@dataclass(frozen=True)
class Retry:
    """`self.retry` in `seconds`, with Celery's count of retries and the arguments it will have."""

    seconds: float
    retries: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    exception: BaseException | None


@dataclass(frozen=True)
class Ignored:
    """The task has raised `Ignore` or `Reject`."""


@dataclass(frozen=True)
class Sent:
    """A task that another has sent, which is no step."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class Replaced:
    """The task has put a canvas in its place by `self.replace`."""

    canvas: Any


TaskOutcome = Done | Failed | Retry | Ignored | Replaced


def run_task(app: Celery, name: str, args: Any, kwargs: Any, *, request: dict[str, Any]) -> tuple[TaskOutcome, list[Sent]]:
    """Run it by Celery's own tracer, so that its signals, retries and limits of types mean what they mean."""
    task = app.tasks[name]
    backend = _Listener(app)
    with (
        _replaced(task, "_backend", backend),
        _replaced(task, "replace", backend.replaced),
        _kept_messages(app) as messages,
    ):
        tracer = build_tracer(name, task, app.loader, "harness", app=app)
        tracer(request["id"], args, kwargs, {"hostname": "harness", "delivery_info": {}, "is_eager": False, **request})
    retry = next((message for message in messages if message[1].headers["id"] == request["id"]), None)
    others = [_sent(name, message, options) for name, message, options in messages if (name, message, options) != retry]
    if backend.retried and retry is not None:
        return _retry(app, retry[1], backend.exception), others
    return backend.outcome or Ignored(), others


def through_serializer(value: Any, serializer: str) -> Any:
    """The value as the other side of a broker sees it. Raises EncodeError if it cannot get there."""
    content_type, encoding, data = dumps(value, serializer=serializer)
    return loads(data, content_type, encoding, accept=[content_type])


class _Listener(DisabledBackend):
    """Is told of the outcome where a result backend is."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app)
        self.outcome: TaskOutcome | None = None
        self.retried = False
        self.exception: BaseException | None = None

    def mark_as_done(self, task_id: str, result: Any, *args: Any, **kwargs: Any) -> None:
        try:
            self.outcome = Done(through_serializer(result, self.app.conf.result_serializer))
        except EncodeError as error:
            self.outcome = Failed(error, "")

    def mark_as_failure(self, task_id: str, exc: BaseException, traceback: Any = None, *args: Any, **kwargs: Any) -> None:
        self.outcome = Failed(exc, str(traceback or ""))

    def replaced(self, signature: Any, *args: Any) -> None:
        # Celery would send it; here it is for the workflow to do so.
        self.outcome = Replaced(through_serializer(signature, self.app.conf.task_serializer))
        raise Ignore("replaced by a canvas")

    def mark_as_retry(self, task_id: str, exc: BaseException, *args: Any, **kwargs: Any) -> None:
        self.retried, self.exception = True, exc


@contextmanager
def _kept_messages(app: Celery) -> Iterator[list[Any]]:
    """What is sent meanwhile is kept here, and no broker is asked for anything."""
    kept: list[Any] = []
    with (
        _replaced(app, "producer_or_acquire", lambda producer=None: _idle_producer()),
        _replaced(app.amqp, "send_task_message", lambda _, *sent, **options: kept.append((*sent, options))),
    ):
        yield kept


@contextmanager
def _idle_producer() -> Iterator[Producer]:
    with Connection("memory://") as connection:
        yield connection.Producer(auto_declare=False)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of this one object, for a while; cached properties come back as they were."""
    before = {name: owner.__dict__[name]} if name in owner.__dict__ else {}
    owner.__dict__[name] = value
    try:
        yield
    finally:
        del owner.__dict__[name]
        owner.__dict__.update(before)


def _retry(app: Celery, message: Any, exception: BaseException | None) -> Retry:
    eta = message.headers.get("eta")
    seconds = 0.0 if eta is None else (datetime.fromisoformat(eta) - app.now()).total_seconds()
    args, kwargs = message.body[0], message.body[1]
    return Retry(max(0.0, round(seconds, 1)), message.headers["retries"], tuple(args), dict(kwargs), exception)


def _sent(name: str, message: Any, options: dict[str, Any]) -> Sent:
    return Sent(name, tuple(message.body[0]), dict(message.body[1]), options)
