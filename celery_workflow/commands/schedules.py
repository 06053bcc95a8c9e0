"""The ``celery workflow schedule`` commands."""

from __future__ import annotations

from typing import Any

import click

from .options import AS_JSON

__all__ = ["schedule"]


@click.group()
def schedule() -> None:
    """List, create, edit and fire schedules."""


@schedule.command(name="list")
@AS_JSON
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List schedules with their next and last ticks."""
    _do(ctx, "list_", as_json=as_json)


@schedule.command()
@click.argument("name")
@click.pass_context
def show(ctx: click.Context, name: str) -> None:
    """Show all that is known of a schedule, as JSON."""
    _do(ctx, "show", name)


@schedule.command()
@click.argument("name")
@click.argument("task")
@click.option("--cron", help="Five or six fields, or a macro such as @daily.")
@click.option("--every", type=float, help="Seconds between two ticks.")
@click.option("--at", help="Once, at this moment: 2030-01-31T12:00:00+00:00.")
@click.option("--args", help="A JSON list.")
@click.option("--kwargs", help="A JSON object.")
@click.option("--options", help="A JSON object of what apply_async takes: queue, priority, headers, expires.")
@click.option("--set", "rules", multiple=True, metavar="FIELD=VALUE", help="Any other field; repeatable.")
@click.pass_context
def create(ctx: click.Context, /, name: str, task: str, **given: Any) -> None:
    """Create the schedule NAME, which sends TASK.

    The value of a --set FIELD=VALUE is JSON, or a text; durations are seconds, moments ISO 8601.
    """
    _do(ctx, "create", name, task, **given)


@schedule.command()
@click.argument("name")
@click.option("--cron", help="Five or six fields, or a macro such as @daily.")
@click.option("--every", type=float, help="Seconds between two ticks.")
@click.option("--at", help="Once, at this moment.")
@click.option("--set", "rules", multiple=True, metavar="FIELD=VALUE", help="Any other field; repeatable.")
@click.pass_context
def edit(ctx: click.Context, /, name: str, **given: Any) -> None:
    """Change fields of a schedule; running beats notice."""
    _do(ctx, "edit", name, **given)


@schedule.command()
@click.argument("name")
@click.option("--note", help="Why.")
@click.pass_context
def pause(ctx: click.Context, name: str, note: str | None) -> None:
    """No ticks until it is resumed; those due meanwhile never fire."""
    _do(ctx, "pause", name, note)


@schedule.command()
@click.argument("name")
@click.pass_context
def resume(ctx: click.Context, name: str) -> None:
    """Go on with the first tick from now."""
    _do(ctx, "resume", name)


@schedule.command()
@click.argument("name")
@click.pass_context
def trigger(ctx: click.Context, name: str) -> None:
    """Fire a schedule now; its next tick stays where it is."""
    _do(ctx, "trigger", name)


@schedule.command()
@click.argument("name")
@click.argument("start")
@click.argument("end")
@click.pass_context
def backfill(ctx: click.Context, name: str, start: str, end: str) -> None:
    """Fire the ticks from START up to, not including, END that did not fire."""
    _do(ctx, "backfill", name, start, end)


@schedule.command()
@click.argument("name")
@click.option("-n", "--count", default=10, show_default=True, type=click.IntRange(1, 1000))
@click.pass_context
def preview(ctx: click.Context, name: str, count: int) -> None:
    """Show when the next ticks fire."""
    _do(ctx, "preview", name, count)


@schedule.command()
@click.argument("name")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1))
@AS_JSON
@click.pass_context
def history(ctx: click.Context, name: str, limit: int, as_json: bool) -> None:
    """Show the latest ticks, and why those that did not fire did not."""
    _do(ctx, "history", name, limit=limit, as_json=as_json)


@schedule.command()
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--reset", is_flag=True, help="Give up what was edited; pauses stay.")
@click.pass_context
def sync(ctx: click.Context, dry_run: bool, reset: bool) -> None:
    """Bring the rows to what the app's beat_schedule says. Beats do so when they start."""
    _do(ctx, "sync", dry_run=dry_run, reset=reset)


@schedule.command(name="import")
@click.argument("kind", type=click.Choice(["django-celery-beat", "redbeat", "shelve"]))
@click.argument("source")
@click.option("--dry-run", is_flag=True, help="Only show what would be created.")
@click.pass_context
def import_(ctx: click.Context, kind: str, source: str, dry_run: bool) -> None:
    """Create schedules from those of another scheduler; names that exist are left alone.

    SOURCE is the URL of Django's database, of Redis, or the path of beat's schedule file. Such a file is a pickle:
    import none that somebody else may have written.
    """
    _do(ctx, "import_", kind, source, dry_run=dry_run)


@schedule.command()
@click.argument("name")
@click.confirmation_option(prompt="Delete it with its history?")
@click.pass_context
def delete(ctx: click.Context, name: str) -> None:
    """Delete a schedule and its history."""
    _do(ctx, "delete", name)


def _do(ctx: click.Context, name: str, /, *args: Any, **options: Any) -> None:
    from ..cli import printing, schedules

    with printing.errors():
        getattr(schedules, name)(ctx.obj.app, *args, **options)
