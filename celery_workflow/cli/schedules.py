"""What the ``celery workflow schedule`` commands do."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click
from celery import Celery

from ..errors import DuplicateScheduleError, ScheduleError
from ..schedules.api import Schedules
from ..schedules.importing import Found, from_django, from_redbeat, from_shelve
from ..schedules.state import Schedule, Tick
from .printing import assignment, moment, print_json, print_rows, time_of, value_of

DURATIONS = {"jitter", "misfire_grace"}
MOMENTS = {"anchor", "start_at", "end_at"}
SOURCES: Mapping[str, Callable[[Celery, str], Iterator[Found]]] = {
    "django-celery-beat": from_django,
    "redbeat": from_redbeat,
    "shelve": from_shelve,
}


def list_(app: Celery, *, as_json: bool) -> None:
    """Print all schedules."""
    print_rows([_row(schedule) for schedule in Schedules(app)], as_json=as_json, empty="no schedules")


def show(app: Celery, name: str) -> None:
    """Print all that is known of one."""
    schedule = Schedules(app).get(name)
    shown: dict[str, Any] = {**schedule.says, "state": _state(schedule)}
    for field in "created_at", "paused_at", "removed_at", "next_at", "due_at", "last_at", "last_fired_at", "finished_at":
        shown[field] = time_of(getattr(schedule, field))
    for field in "note", "origin", "runs", "late_for", "last_task_id", "error":
        shown[field] = getattr(schedule, field)
    print_json(shown)


def create(app: Celery, name: str, task: str, **given: Any) -> None:
    """Create one and print when it fires."""
    schedules = Schedules(app)
    when = _when(given)
    if when is None:
        raise click.ClickException("give one of --cron, --every or --at")
    fields = {each: _json(each, given[each]) for each in ("args", "kwargs", "options") if given[each]}
    schedules.create(name, task, when, **fields, **_rules(given["rules"]))
    _next(schedules, name)
    _doubt(app, task)


def _doubt(app: Celery, task: str) -> None:
    """Say that the app has no such task; another program's workers may."""
    app.loader.import_default_modules()
    own = {name for name in app.tasks if not name.startswith("celery.")}
    if own and task not in app.tasks:
        near = difflib.get_close_matches(task, own, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        click.echo(f"this app has no task {task!r}, and a worker that knows none parks what it gets{hint}", err=True)


def edit(app: Celery, name: str, **given: Any) -> None:
    """Change one and print when it fires."""
    schedules = Schedules(app)
    when = _when(given)
    schedules.edit(name, **_rules(given["rules"]), **({} if when is None else {"schedule": when}))
    _next(schedules, name)


def pause(app: Celery, name: str, note: str | None) -> None:
    """Pause one."""
    Schedules(app).pause(name, note)
    click.echo(f"{name} is paused")


def resume(app: Celery, name: str) -> None:
    """Resume one."""
    schedules = Schedules(app)
    schedules.resume(name)
    _next(schedules, name)


def trigger(app: Celery, name: str) -> None:
    """Fire one now."""
    click.echo(f"{name} fired: task {Schedules(app).trigger(name).task_id}")


def backfill(app: Celery, name: str, start: str, end: str) -> None:
    """Fire the ticks of a range."""
    ticks = Schedules(app).backfill(name, moment(start), moment(end))
    click.echo(f"{len(ticks)} ticks of {name} fired")


def preview(app: Celery, name: str, count: int) -> None:
    """Print the next ticks."""
    for tick_at in Schedules(app).preview(name, count):
        click.echo(tick_at.isoformat())


def history(app: Celery, name: str, *, limit: int, as_json: bool) -> None:
    """Print the latest ticks."""
    print_rows([_tick_row(tick) for tick in Schedules(app).history(name, limit)], as_json=as_json, empty="no ticks yet")


def sync(app: Celery, *, dry_run: bool, reset: bool) -> None:
    """Bring the rows to the configuration, and print what changed."""
    changes = Schedules(app).sync(dry_run=dry_run, reset=reset)
    for change in changes:
        click.echo(str(change))
    if not changes:
        click.echo("nothing to change")


def import_(app: Celery, kind: str, source: str, *, dry_run: bool) -> None:
    """Create what another scheduler has, and print it."""
    schedules = Schedules(app)
    for name, found in SOURCES[kind](app, source):
        if isinstance(found, ScheduleError):
            click.echo(f"refused {name}: {found}", err=True)
            continue
        said = f"{name}: {found.task}, {found.kind} {found.spec} ({found.timezone})"
        try:
            if not dry_run:
                schedules.create_many([found])
            click.echo(f"{'would create' if dry_run else 'created'} {said}")
        except DuplicateScheduleError:
            click.echo(f"left alone {name}: there is a schedule of that name")


def delete(app: Celery, name: str) -> None:
    """Delete one."""
    Schedules(app).delete(name)
    click.echo(f"{name} is deleted")


def _next(schedules: Schedules, name: str) -> None:
    schedule = schedules.get(name)
    click.echo(f"{name}: {_state(schedule)}, next tick {time_of(schedule.next_at) or 'none'}")


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.ClickException(f"--{name} {text!r} is no JSON: {error}") from error


def _when(given: Mapping[str, Any]) -> Any:
    chosen = [each for each in ("cron", "every", "at") if given[each] is not None]
    if len(chosen) > 1:
        raise click.ClickException("give only one of --cron, --every and --at")
    if not chosen:
        return None
    return moment(given["at"]) if chosen == ["at"] else given[chosen[0]]


def _rules(texts: Sequence[str]) -> dict[str, Any]:
    named = (assignment(text, option="--set", shape="FIELD=VALUE") for text in texts)
    return {name: _value(name, value) for name, value in named}


def _value(name: str, text: str) -> Any:
    value = value_of(text)
    if value is None:
        return None
    if name in DURATIONS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise click.ClickException(f"{name} is {text!r}, but must be seconds")
        return timedelta(seconds=value)
    return moment(text) if name in MOMENTS else value


def _row(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "task": schedule.says["task"],
        "kind": schedule.says["kind"],
        "spec": schedule.says["spec"],
        "timezone": schedule.says["timezone"],
        "state": _state(schedule),
        "next": time_of(schedule.next_at),
        "last": time_of(schedule.last_fired_at),
        "late": None if schedule.late_for is None else schedule.late_for / 1_000_000,
        "runs": schedule.runs,
    }


def _state(schedule: Schedule) -> str:
    if schedule.paused_at is not None:
        return "paused"
    if schedule.removed_at is not None:
        return "removed"
    if not schedule.says["enabled"]:
        return "disabled"
    if schedule.error is not None:
        return "error"
    return "active" if schedule.finished_at is None else "finished"


def _tick_row(tick: Tick) -> dict[str, Any]:
    shown = {name: value for name, value in asdict(tick).items() if name != "schedule"}
    late = None if tick.late_for is None else tick.late_for / 1_000_000
    return shown | {"tick_at": time_of(tick.tick_at), "handled_at": time_of(tick.handled_at), "late_for": late}
