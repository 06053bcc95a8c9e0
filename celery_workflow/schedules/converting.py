"""Entries of `beat_schedule` as definitions: every class of schedule that Celery has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab, maybe_schedule, schedule, solar
from tzlocal import get_localzone_name

from ..errors import ScheduleError
from .definition import Definition
from .payload import frozen

__all__ = ["definition_of", "spec_of", "zone_of"]

#: What an entry has in Celery, and what it may have besides: the fields of a definition.
CELERYS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})
OURS = frozenset(Definition.names()) - CELERYS - {"name", "kind", "spec"}
CRON_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day_of_month", 1, 31),
    ("month_of_year", 1, 12),
    ("day_of_week", 0, 6),
)


def definition_of(app: Celery, name: str, entry: Mapping[str, Any]) -> Definition:
    """The definition of an entry of `beat_schedule`, which may also have fields of a `Definition`.

    Raises ScheduleError for what cannot be a row.
    """
    unknown = set(entry) - CELERYS - OURS
    if unknown:
        raise ScheduleError(f"entry {name!r} has an unknown {', '.join(sorted(map(str, unknown)))}")
    try:
        when = entry["schedule"]
        task = entry["task"]
    except KeyError as error:
        raise ScheduleError(f"entry {name!r} has no {error.args[0]}") from error
    kind, spec, zone = spec_of(app, name, when, relative=bool(entry.get("relative")))
    given = {field: entry[field] for field in OURS & set(entry)}
    return Definition(
        name=name,
        task=task,
        kind=kind,
        spec=spec,
        args=_arguments(f"args of {name!r}", entry.get("args"), []),
        kwargs=_arguments(f"kwargs of {name!r}", entry.get("kwargs"), {}),
        options=_arguments(f"options of {name!r}", entry.get("options"), {}),
        **{"timezone": zone, **given},
    )


def spec_of(app: Celery, name: str, when: Any, *, relative: bool = False) -> tuple[Any, str, str]:
    """The kind, the spec and the zone of anything that Celery takes for a schedule, of cron text, or of a moment."""
    zone = zone_of(app)
    if isinstance(when, str):
        return "cron", when, zone
    if isinstance(when, datetime):
        return "clocked", when.isoformat(), zone
    given = maybe_schedule(when, relative, app=app)
    if isinstance(given, crontab):
        return "crontab", _crontab_text(given), _own_zone(given) or zone
    if isinstance(given, solar):
        return "solar", f"{given.event} {given.lat} {given.lon}", zone
    if type(given).__module__.startswith("celery.") and isinstance(given, schedule):
        period: timedelta = given.run_every
        return ("relative" if given.relative else "interval"), _seconds(period), _own_zone(given) or zone
    clocked_time = getattr(given, "clocked_time", None)
    if isinstance(clocked_time, datetime):
        return "clocked", clocked_time.isoformat(), zone
    raise ScheduleError(
        f"entry {name!r}: a {type(given).__name__} cannot be stored as a row; use crontab, a timedelta, seconds,"
        " solar, cron text or a datetime"
    )


def zone_of(app: Celery) -> str:
    """The IANA name of the app's time zone."""
    named = app.conf.timezone
    if named is None:
        return "UTC" if app.conf.enable_utc else str(get_localzone_name())
    return named.key if isinstance(named, ZoneInfo) else str(named)


def _own_zone(given: Any) -> str | None:
    """The zone of a schedule that has one of its own, as django-celery-beat's crontab has."""
    own = vars(given).get("tz")
    return own.key if isinstance(own, ZoneInfo) else None


def _arguments(what: str, value: Any, none: Any) -> Any:
    """As it is stored; whether it is of the right shape is for the definition to say."""
    if value is None:
        return none
    if isinstance(value, Mapping):
        value = dict(value)
    values: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for each in values:
        if type(each).__name__ == "BeatLazyFunc":
            raise ScheduleError(f"{what} has a BeatLazyFunc, which cannot be stored: compute it in the task")
    return frozen(what, value)


def _seconds(period: timedelta) -> str:
    """As few digits as it takes."""
    seconds, rest = divmod(period // timedelta(microseconds=1), 1_000_000)
    return f"{seconds}.{rest:06}".rstrip("0") if rest else str(seconds)


def _crontab_text(given: crontab) -> str:
    return " ".join(_field_text(getattr(given, name), least, most) for name, least, most in CRON_FIELDS)


def _field_text(numbers: Iterable[int], least: int, most: int) -> str:
    """The numbers as ranges; a star for all of them."""
    left = sorted(set(numbers))
    if left == list(range(least, most + 1)):
        return "*"
    parts = []
    while left:
        length = next((place for place, number in enumerate(left) if number != left[0] + place), len(left))
        parts.append(str(left[0]) if length == 1 else f"{left[0]}-{left[length - 1]}")
        left = left[length:]
    return ",".join(parts)
