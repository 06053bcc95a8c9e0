"""Schedules of other schedulers: django-celery-beat's tables, redbeat's hashes, the file of celery beat."""

from __future__ import annotations

import dbm
import json
import shelve
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.schedules import crontab, schedule, solar

from ..errors import ScheduleError
from ..sql.django import PeriodicTask, periodic_tasks
from .converting import definition_of
from .definition import Definition

__all__ = ["Found", "from_django", "from_redbeat", "from_shelve"]

#: A name with what it is, or why it cannot be one of ours.
Found = tuple[str, Definition | ScheduleError]

#: What redbeat calls its hashes if it is not told otherwise.
REDBEAT_PREFIX = "redbeat:"
REDBEAT_ENTRY = "definition"


def from_django(app: Celery, url: str) -> Iterator[Found]:
    """The periodic tasks in the tables of django-celery-beat in the database of this URL."""
    for task in periodic_tasks(url):
        yield task.name, _tried(app, task.name, lambda task=task: _entry_of_django(task))


def from_shelve(app: Celery, path: str) -> Iterator[Found]:
    """The entries in a schedule file of celery beat. It is unpickled: read none that others may have written.

    Raises ScheduleError if there is no such file.
    """
    try:
        # The name beat is given may have an ending that its database adds.
        opened = shelve.open(path, flag="r")  # noqa: SIM115
    except (OSError, *dbm.error) as error:
        raise ScheduleError(f"{path} cannot be read: {error}") from error
    with closing(opened) as file:
        for name, entry in sorted(file.get("entries", {}).items()):
            given = {each: getattr(entry, each) for each in ("task", "schedule", "args", "kwargs", "options")}
            yield name, _tried(app, name, lambda given=given: given)


def from_redbeat(app: Celery, url: str) -> Iterator[Found]:
    """The entries that redbeat keeps in the Redis of this URL.

    Raises ScheduleError without the package redis, or if that Redis does not answer.
    """
    try:
        import redis
    except ImportError as error:
        raise ScheduleError("to read redbeat's schedules takes the package redis: pip install redis") from error
    prefix = str(app.conf.get("redbeat_key_prefix") or REDBEAT_PREFIX)
    try:
        with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
            keys = sorted(client.scan_iter(match=f"{prefix}*", count=1000))
            texts = [client.hget(key, REDBEAT_ENTRY) for key in keys if client.type(key) == "hash"]
    except (redis.RedisError, ValueError) as error:
        raise ScheduleError(f"redbeat's Redis cannot be read: {error}") from error
    for text in texts:
        if text:
            entry = json.loads(text)
            yield entry["name"], _tried(app, entry["name"], lambda entry=entry: _entry_of_redbeat(entry))


def _tried(app: Celery, name: str, entry: Any) -> Definition | ScheduleError:
    try:
        return definition_of(app, name, entry())
    except ScheduleError as error:
        return error
    except (TypeError, ValueError, KeyError) as error:
        return ScheduleError(f"{name!r} cannot be read: {error}")


def _entry_of_django(task: PeriodicTask) -> Mapping[str, Any]:
    names = ("queue", "exchange", "routing_key", "priority")
    options = {name: getattr(task, name) for name in names if getattr(task, name) is not None}
    if task.expire_seconds is not None:
        options["expires"] = task.expire_seconds
    if task.headers and (headers := json.loads(task.headers)):
        options["headers"] = headers
    entry: dict[str, Any] = {
        "task": task.task,
        "schedule": _schedule_of_django(task),
        "args": json.loads(task.args or "[]"),
        "kwargs": json.loads(task.kwargs or "{}"),
        "options": options,
        "enabled": bool(task.enabled),
        "start_at": _moment(task.start_time),
        "end_at": _moment(task.expires),
        "max_runs": 1 if task.one_off else None,
    }
    if task.timezone is not None:
        entry["timezone"] = task.timezone
    return {name: value for name, value in entry.items() if value is not None}


def _schedule_of_django(task: PeriodicTask) -> Any:
    if task.every is not None:
        return timedelta(**{task.period: task.every})
    if task.minute is not None:
        return crontab(task.minute, task.hour, task.day_of_week, task.day_of_month, task.month_of_year)
    if task.event is not None:
        return solar(task.event, float(task.latitude), float(task.longitude))
    moment = _moment(task.clocked_time)
    if moment is None:
        raise ScheduleError(f"{task.name!r} has no schedule")
    return moment


def _moment(value: Any) -> datetime | None:
    """Django writes UTC, with a zone or without, or as a text."""
    if value is None:
        return None
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _entry_of_redbeat(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    given = {name: entry[name] for name in ("task", "args", "kwargs", "options", "enabled") if entry.get(name) is not None}
    options = dict(given.get("options") or {})
    # redbeat marks what it sends, and so do we.
    options.pop("schedule_id", None)
    return {**given, "options": options, "schedule": _schedule_of_redbeat(entry["name"], entry["schedule"])}


def _schedule_of_redbeat(name: str, given: Mapping[str, Any]) -> Any:
    kind = given.get("__type__")
    if kind == "interval":
        return schedule(given["every"], relative=bool(given.get("relative")))
    if kind == "crontab":
        fields = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        return crontab(*(given.get(field, "*") for field in fields))
    raise ScheduleError(f"{name!r} is a {kind}, which is not supported")
