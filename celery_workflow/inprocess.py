"""Runs the task of a step in this process as a worker would. Nothing is published, and no database is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.app.task import Context as Request
from celery.app.trace import build_tracer
from celery.backends.base import DisabledBackend
from kombu import Connection, Producer
from kombu.serialization import dumps, loads

from .inmemory import Attempt, Context, InMemory
from .runs import hooks, runtime
from .runs.identity import StepIdentity

__all__ = ["Sent", "run_task", "taking_over", "through_serializer"]


@dataclass(frozen=True)
class Sent:
    """A task that another has sent, which is no step."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


class Nowhere(hooks.Participating, DisabledBackend):
    """Passes the outcomes of steps on, as the result backend of every app with workflows; keeps no result."""


@contextmanager
def taking_over(memory: InMemory) -> Iterator[None]:
    """What asks the app for its runs meanwhile is answered from memory."""
    app = memory.app
    with _replaced(app, runtime.ATTRIBUTE, memory), _replaced(app, hooks.ATTRIBUTE, memory.outcomes):
        yield


def run_task(memory: InMemory, name: str, args: Any, kwargs: Any, *, step: StepIdentity, request: dict[str, Any]) -> Attempt:
    """Run it by Celery's own tracer, so that its signals, retries and limits of types mean what they mean."""
    app, attempt = memory.app, Attempt()
    task = app.tasks[name]
    memory.attempt = attempt
    try:
        with (
            taking_over(memory),
            _replaced(task, "_backend", Nowhere(app)),
            _kept_messages(app, attempt.messages),
        ):
            known = {"hostname": "harness", "delivery_info": {}, "is_eager": False, **step.headers(), **request}
            tracer = build_tracer(name, task, app.loader, "harness", app=app)
            tracer(request["id"], args, kwargs, {**known, "workflow_context": Context(step, Request(known), app)})
    finally:
        memory.attempt = None
    return attempt


def through_serializer(value: Any, serializer: str) -> Any:
    """The value as the other side of a broker sees it. Raises EncodeError if it cannot get there."""
    content_type, encoding, data = dumps(value, serializer=serializer)
    return loads(data, content_type, encoding, accept=[content_type])


@contextmanager
def _kept_messages(app: Celery, kept: list[Sent]) -> Iterator[None]:
    """What is sent meanwhile is kept here, and no broker is asked for anything."""

    def keep(_: Any, name: str, message: Any, **options: Any) -> None:
        kept.append(Sent(name, tuple(message.body[0]), dict(message.body[1]), options))

    with (
        _replaced(app, "producer_or_acquire", lambda producer=None: _idle_producer()),
        _replaced(app.amqp, "send_task_message", keep),
    ):
        yield


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
