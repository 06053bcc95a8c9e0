"""What goes on instead of a running task does not wait for a transaction of that task's."""

from __future__ import annotations

import functools
from typing import Any

from celery.app.task import Task

from .transactions import apart

__all__ = ["install"]


def install() -> None:
    """Let ``replace()`` send at once. Safe to call twice.

    It leaves the task by an exception, which rolls most transactions back, and Celery takes the task for
    done: what replaces it would be lost.
    """
    replace = Task.replace
    if getattr(replace, "is_apart", False):
        return

    @functools.wraps(replace)
    def replace_apart(self: Any, *args: Any, **kwargs: Any) -> Any:
        with apart():
            return replace(self, *args, **kwargs)

    # Also on what others put around it: `wraps` copies it.
    replace_apart.is_apart = True  # type: ignore[attr-defined]
    Task.replace = replace_apart
