"""What became of the ticks of a schedule, as tests compare it."""

from __future__ import annotations

from celery_workflow import Schedules
from celery_workflow.schedules.zones import SECOND, moment_of

from .conftest import NOON

__all__ = ["AT_NOON", "SECOND", "ticks"]

AT_NOON = moment_of(NOON)


def ticks(schedules: Schedules, name: str) -> list[tuple[float, str, str | None]]:
    """Seconds after noon, outcome and reason of each tick, the earliest first."""
    found = [((t.tick_at - NOON) / SECOND, str(t.outcome), t.reason) for t in schedules.history(name, 1000)]
    return list(reversed(found))
