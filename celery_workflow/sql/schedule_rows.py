"""Rows and what they mean: definitions to columns, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from ..schedules.definition import Definition
from ..schedules.state import Schedule
from ..schedules.zones import MICROSECOND, instant_of, moment_of

__all__ = ["columns", "fields", "schedule_of"]

#: Fields by another name than their column's, or in another form.
DURATIONS = {"jitter": "jitter_for", "misfire_grace": "misfire_grace_for"}
MOMENTS = {"anchor": "anchor_at", "start_at": "start_at", "end_at": "end_at"}
TEXTS: dict[str, Any] = {"args": [], "kwargs": {}, "options": {}, "windows": []}
STATE = (
    *("id", "name", "created_at", "paused_at", "note", "origin", "removed_at", "next_at", "due_at", "last_at"),
    *("last_fired_at", "late_for", "last_task_id", "last_message", "queued_at", "runs", "finished_at", "error"),
)


def columns(definition: Definition) -> dict[str, Any]:
    """The columns that hold the definition."""
    return {_column(name): _stored(getattr(definition, name)) for name in Definition.names()}


def fields(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields of the definition that the row holds, unchecked."""
    return {name: _read(name, row[_column(name)]) for name in Definition.names()}


def schedule_of(row: Mapping[Any, Any]) -> Schedule:
    """The schedule of a row."""
    state = {name: row[name] for name in STATE}
    synced = None if row["synced"] is None else json.loads(row["synced"])
    return Schedule(says=fields(row), synced=synced, **state)


def _column(name: str) -> str:
    return DURATIONS.get(name) or MOMENTS.get(name) or {"when": "fires_when"}.get(name, name)


def _stored(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, timedelta):
        return value // MICROSECOND
    if isinstance(value, datetime):
        return instant_of(value)
    if isinstance(value, Mapping):
        return json.dumps(dict(value)) if value else None
    if isinstance(value, list | tuple):
        return json.dumps(list(value)) if value else None
    return value


def _read(name: str, value: Any) -> Any:
    if name in TEXTS:
        # Who writes rows by hand may write nonsense; the definition refuses it where it is used.
        try:
            return json.loads(value) if value else TEXTS[name]
        except ValueError:
            return value
    if name == "enabled":
        return bool(value)
    if value is None:
        return None
    if name in DURATIONS:
        return value * MICROSECOND
    return moment_of(value) if name in MOMENTS else value
