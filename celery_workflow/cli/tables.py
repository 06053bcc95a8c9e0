"""The tables of schedules and runs."""

from __future__ import annotations

import click
from celery import Celery

from kombu_sqlqueue.sql import migrate as migrations

from ..home import Home

__all__ = ["check", "migrate"]


def migrate(app: Celery, *, sql: bool) -> None:
    """Bring the tables to this release."""
    home = Home(app)
    if sql:
        click.echo(migrations.script(home.database, home.line), nl=False)
    else:
        migrations.upgrade(home.database, home.line)
        click.echo(_standing(home))


def check(app: Celery) -> bool:
    """Whether the tables fit this release."""
    home = Home(app)
    click.echo(_standing(home))
    return migrations.check(home.database, home.line).usable


def _standing(home: Home) -> str:
    return f"{home.options.safe_url}: {migrations.check(home.database, home.line)}"
