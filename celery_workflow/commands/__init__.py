"""The ``celery workflow`` commands. Every celery command imports this package: keep it light."""

from __future__ import annotations

import click

from .runs import COMMANDS
from .schedules import schedule

__all__ = ["workflow"]


@click.group()
def workflow() -> None:
    """Start, follow and repair durable workflows, and look after durable schedules.

    They are in the database of the app's broker (-A), or in the one that workflow_store_url names.
    """


@workflow.command()
@click.option("--sql", is_flag=True, help="Only print the SQL that is still to be run.")
@click.pass_context
def migrate(ctx: click.Context, sql: bool) -> None:
    """Create the tables, or bring them to this release."""
    from ..cli import printing, tables

    with printing.errors():
        tables.migrate(ctx.obj.app, sql=sql)


@workflow.command()
@click.pass_context
def check(ctx: click.Context) -> None:
    """Tell whether the tables fit this release; exit 1 if they do not."""
    from ..cli import printing, tables

    with printing.errors():
        ctx.exit(0 if tables.check(ctx.obj.app) else 1)


workflow.add_command(schedule)
for command in COMMANDS:
    workflow.add_command(command)
