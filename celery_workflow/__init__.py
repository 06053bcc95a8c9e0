"""Durable schedules for Celery: rows in a SQL database, fired once however many beats run. And the engine of
durable workflows, which runs them in one process so far (`celery_workflow.testing`).

Importing this package imports neither SQLAlchemy nor Celery; the names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Definition", "DuplicateScheduleError", "ScheduleError", "ScheduleNotFoundError", "Schedules", "WorkflowError"]

_HOMES = {name: ".errors" for name in __all__ if name.endswith("Error")} | {
    "Definition": ".schedules.definition",
    "Schedules": ".schedules.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
