"""The errors this package raises, under one root."""

from __future__ import annotations

__all__ = ["DuplicateScheduleError", "ScheduleError", "ScheduleNotFoundError", "WorkflowError"]


class WorkflowError(Exception):
    """Root of every error this package raises on purpose."""


class ScheduleError(WorkflowError, ValueError):
    """A schedule is wrong; the text names the field, its value and what it must be."""


class DuplicateScheduleError(ScheduleError):
    """A schedule of that name exists already."""


class ScheduleNotFoundError(WorkflowError, LookupError):
    """There is no schedule of that name."""
