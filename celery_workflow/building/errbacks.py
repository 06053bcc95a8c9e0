"""Calls an error callback as Celery does: in the worker, with the request, the exception and the traceback."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from celery import current_app, shared_task
from celery.app.task import Context
from celery.canvas import maybe_signature
from celery.utils.serialization import create_exception_cls

from .canvas import ERRBACK

__all__ = ["call_errback", "exception_of"]


@shared_task(name=ERRBACK)  # type: ignore[untyped-decorator]
def call_errback(failure: dict[str, Any], errback: dict[str, Any]) -> None:
    """Give the callback what it would have been given where the task failed."""
    error = failure["error"] or {"type": "Exception", "module": "", "message": failure["reason"], "traceback": ""}
    request = Context(id=failure["task_id"], task=failure["task"], root_id=failure["id"], args=(), kwargs={})
    signature = maybe_signature(errback, app=current_app)
    signature(request, exception_of(error), error["traceback"])


def exception_of(error: Mapping[str, str]) -> BaseException:
    """An exception with the name, module and text of one that happened elsewhere."""
    known = getattr(builtins, error["type"], None) if error["module"] in ("", "builtins") else None
    kind = known if isinstance(known, type) and issubclass(known, BaseException) else None
    if kind is None:
        kind = create_exception_cls(error["type"], error["module"] or __name__)
    try:
        return kind(error["message"])
    except TypeError:
        return Exception(error["message"])
