"""Durable workflows and schedules for Celery, in a SQL database: a graph of ordinary tasks that survives everything, and
ticks that fire once however many beats run.

Importing this package imports neither SQLAlchemy nor Celery; the names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "Definition",
    "DefinitionError",
    "DuplicateRunError",
    "DuplicateScheduleError",
    "InvalidTransitionError",
    "NotInStepError",
    "Permanent",
    "Run",
    "RunFailedError",
    "RunNotFoundError",
    "ScheduleError",
    "ScheduleNotFoundError",
    "Schedules",
    "Snooze",
    "WaitTimeoutError",
    "WorkflowError",
    "Workflows",
    "current",
    "durable",
    "workflow",
]

_HOMES = {name: ".errors" for name in __all__ if name.endswith("Error")} | {
    "Definition": ".schedules.definition",
    "Permanent": ".errors",
    "Run": ".runs.handle",
    "Schedules": ".schedules.api",
    "Snooze": ".errors",
    "Workflows": ".runs.api",
    "current": ".runs.context",
    "durable": ".runs.workflows",
    "workflow": ".runs.workflows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
