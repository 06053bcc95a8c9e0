"""The ``celery sqlqueue`` commands. Every celery command imports this module: keep it light."""

from __future__ import annotations

import click

__all__ = ["sqlqueue"]


@click.group()
def sqlqueue() -> None:
    """Look after the SQL database that carries the messages.

    It is the one of the app (-A), or of --broker and --result-backend.
    """


@sqlqueue.command()
@click.option("--sql", is_flag=True, help="Only print the SQL that is still to be run.")
@click.pass_context
def migrate(ctx: click.Context, sql: bool) -> None:
    """Create the tables, or bring them to this release."""
    from . import cli

    with cli.errors():
        cli.migrate(ctx.obj.app, sql=sql)


@sqlqueue.command()
@click.pass_context
def check(ctx: click.Context) -> None:
    """Tell whether the tables fit this release; exit 1 if they do not."""
    from . import cli

    with cli.errors():
        ctx.exit(0 if cli.check(ctx.obj.app) else 1)


@sqlqueue.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def stats(ctx: click.Context, as_json: bool) -> None:
    """Show how many messages of each queue are where.

    ready: could be claimed now. delayed: waits for its time. leased: with a worker.
    started: with a worker, and acked early. dead: set aside. oldest: seconds since
    the oldest ready message was published.
    """
    from . import cli

    with cli.errors():
        cli.stats(ctx.obj.app, as_json=as_json)


@sqlqueue.command()
@click.option("-Q", "--queue", help="Only those of this queue.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="At most so many, the latest first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def dead(ctx: click.Context, queue: str | None, limit: int, as_json: bool) -> None:
    """List dead messages: set aside because nobody could finish them."""
    from . import cli

    with cli.errors():
        cli.dead(ctx.obj.app, queue=queue, limit=limit, as_json=as_json)


@sqlqueue.command()
@click.argument("ids", nargs=-1, type=int)
@click.option("-Q", "--queue", help="Every dead message of this queue, instead of IDS.")
@click.pass_context
def redrive(ctx: click.Context, ids: tuple[int, ...], queue: str | None) -> None:
    """Make dead messages ready again: those with these IDS, as `dead` shows them, or a --queue's."""
    from . import cli

    if bool(ids) == (queue is not None):
        raise click.UsageError("give either the IDS of dead messages or a --queue")
    with cli.errors():
        cli.redrive(ctx.obj.app, ids=ids, queue=queue)


@sqlqueue.command()
@click.option("--once", is_flag=True, help="Pass on what is there and exit; 1 if the broker is away.")
@click.option("--batch", type=click.IntRange(1), help="Messages sent before any is deleted.  [default: 200]")
@click.option("-l", "--loglevel", default="INFO", show_default=True, help="Logging level.")
@click.pass_context
def relay(ctx: click.Context, once: bool, batch: int | None, loglevel: str) -> None:
    """Pass on what the app put into its outbox to its broker, until stopped.

    Run as many as you like: one works, the others wait to take over.
    """
    from . import cli

    with cli.errors():
        ctx.exit(0 if cli.relay(ctx.obj.app, once=once, batch=batch, loglevel=loglevel) else 1)
