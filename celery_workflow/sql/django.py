"""Reading the tables of django-celery-beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Table, TableClause, column, select, table

from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.sql.database import Database

__all__ = ["PeriodicTask", "periodic_tasks"]

TASK = "django_celery_beat_periodictask"
#: The kinds of schedules, with the columns that each has.
SCHEDULES = {
    "interval": ("every", "period"),
    "crontab": ("minute", "hour", "day_of_week", "day_of_month", "month_of_year", "timezone"),
    "solar": ("event", "latitude", "longitude"),
    "clocked": ("clocked_time",),
}


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A periodic task with its schedule, as Django has stored them."""

    name: str
    task: str
    args: str | None
    kwargs: str | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    priority: int | None
    headers: str | None
    expires: Any
    expire_seconds: int | None
    one_off: bool
    start_time: Any
    enabled: bool
    every: Any
    period: Any
    minute: Any
    hour: Any
    day_of_week: Any
    day_of_month: Any
    month_of_year: Any
    timezone: Any
    event: Any
    latitude: Any
    longitude: Any
    clocked_time: Any


def periodic_tasks(url: str) -> Sequence[PeriodicTask]:
    """All of them. Raises ConfigurationError for a wrong URL, SchemaError if the tables are not there."""
    database = Database(DatabaseOptions(normalise(url)))
    try:
        rows = database.statement(lambda tx: tx.execute(_query()).mappings().all())
        return [PeriodicTask(**row) for row in rows]
    finally:
        database.dispose()


def _query() -> Any:
    own = [field.name for field in fields(PeriodicTask) if all(field.name not in names for names in SCHEDULES.values())]
    task = table(TASK, *map(column, [*own, *(f"{kind}_id" for kind in SCHEDULES)]))
    selected: list[ColumnElement[Any]] = [task.c[name] for name in own]
    joined: Any = task
    for kind, names in SCHEDULES.items():
        other: TableClause | Table = table(f"django_celery_beat_{kind}schedule", *map(column, ["id", *names]))
        joined = joined.outerjoin(other, other.c.id == task.c[f"{kind}_id"])
        selected += [other.c[name] for name in names]
    # Those of Celery itself are made anew by each beat.
    return select(*selected).select_from(joined).where(task.c.name != "celery.backend_cleanup").order_by(task.c.name)
