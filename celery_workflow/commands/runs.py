"""The ``celery workflow`` commands about runs."""

from __future__ import annotations

from typing import Any

import click

from .options import AS_JSON

__all__ = ["COMMANDS"]

#: As of `engine.states`, which is too much to load here.
STATUSES = ("pending", "running", "stopping", "compensating", "succeeded", "failed", "cancelled", "discarded")


@click.command(name="list")
@click.option("--name", help="Runs of this workflow.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="In this state; repeatable.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="With this label; repeatable: all must hold.")
@click.option("--tenant", help="Of this tenant.")
@click.option("--waiting", type=click.Choice(["timer", "signal"]), help="With a step that waits for one.")
@click.option("--failed-step", help="That failed at this step.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--cursor", type=int, help="Go on below this number: the last one of the page before.")
@AS_JSON
@click.pass_context
def list_(ctx: click.Context, /, **given: Any) -> None:
    """List runs, the newest first."""
    _do(ctx, "list_", **given)


@click.command()
@click.argument("run_id", metavar="ID")
@click.option("--journal", is_flag=True, help="With all that happened.")
@AS_JSON
@click.pass_context
def show(ctx: click.Context, run_id: str, journal: bool, as_json: bool) -> None:
    """Show a run: its inputs, its steps and what went wrong."""
    _do(ctx, "show", run_id, journal=journal, as_json=as_json)


@click.command()
@click.argument("run_id", metavar="ID")
@click.option("--mermaid", "form", flag_value="mermaid", default="mermaid", help="For Markdown and mermaid.live (default).")
@click.option("--dot", "form", flag_value="dot", help="For Graphviz.")
@click.pass_context
def graph(ctx: click.Context, run_id: str, form: str) -> None:
    """Print the graph of a run with the states of its steps."""
    _do(ctx, "graph", run_id, form=form)


@click.command()
@click.argument("name")
@click.option("--input", "inputs", multiple=True, metavar="NAME=JSON", help="An input; JSON, or a text. Repeatable.")
@click.option("--id", "run_id", metavar="ID", help="The id of the run; one that exists is refused.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label to find it by; repeatable.")
@click.option("--tenant", help="The tenant it is for.")
@click.option("--eta", help="Not before this moment: 2030-01-31T12:00:00+00:00.")
@click.option("--priority", type=click.IntRange(0, 255), help="Of steps that have none of their own.")
@AS_JSON
@click.pass_context
def start(ctx: click.Context, /, name: str, **given: Any) -> None:
    """Start a run of the workflow NAME and print its id."""
    _do(ctx, "start", name, **given)


@click.command()
@click.argument("run_id", metavar="ID")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--signal-id", help="The second signal of an id is ignored.")
@click.pass_context
def signal(ctx: click.Context, run_id: str, name: str, payload: str | None, signal_id: str | None) -> None:
    """Send the signal NAME to a run; its PAYLOAD is JSON, or a text."""
    _do(ctx, "signal", run_id, name, payload, signal_id=signal_id)


@click.command()
@click.argument("run_id", metavar="ID")
@click.option("--reason", default="", help="Why.")
@click.option("--no-children", is_flag=True, help="Runs that its steps have started go on alone.")
@click.pass_context
def cancel(ctx: click.Context, run_id: str, reason: str, no_children: bool) -> None:
    """Begin nothing more, stop what runs, undo what is to be undone."""
    _do(ctx, "cancel", run_id, reason=reason, children=not no_children)


@click.command()
@click.argument("run_id", metavar="ID")
@click.pass_context
def retry(ctx: click.Context, run_id: str) -> None:
    """Go on from what failed; what succeeded is kept."""
    _do(ctx, "retry", run_id)


@click.command()
@click.argument("run_id", metavar="ID")
@click.option("--from-step", metavar="STEP", help="The step to do again; without one, the whole run.")
@click.option("--scope", type=click.Choice(["step", "downstream", "all"]), help="Only it, or all that follow it (default).")
@click.pass_context
def rerun(ctx: click.Context, run_id: str, from_step: str | None, scope: str | None) -> None:
    """Do a run, or a part of it, again."""
    _do(ctx, "rerun", run_id, from_step=from_step, scope=scope)


@click.command()
@click.argument("run_id", metavar="ID")
@AS_JSON
@click.pass_context
def watch(ctx: click.Context, run_id: str, as_json: bool) -> None:
    """Show how a run gets on until it ends; exit 1 unless it succeeds.

    Where the output is no terminal: a line for each change; with --json an object each.
    """
    ctx.exit(0 if _do(ctx, "watch", run_id, as_json=as_json) else 1)


@click.command()
@click.option(
    "--older-than", required=True, type=click.FloatRange(0), metavar="DAYS", help="Runs that ended so many days ago."
)
@AS_JSON
@click.pass_context
def prune(ctx: click.Context, older_than: float, as_json: bool) -> None:
    """Delete runs that ended long ago, with all they have."""
    _do(ctx, "prune", days=older_than, as_json=as_json)


@click.command()
@AS_JSON
@click.pass_context
def reconcile(ctx: click.Context, as_json: bool) -> None:
    """Look for runs that nothing will move, and move them. Workers do so each minute."""
    _do(ctx, "reconcile", as_json=as_json)


COMMANDS = (list_, show, graph, start, signal, cancel, retry, rerun, watch, prune, reconcile)


def _do(ctx: click.Context, name: str, /, *args: Any, **options: Any) -> Any:
    from ..cli import printing, runs

    with printing.errors():
        return getattr(runs, name)(ctx.obj.app, *args, **options)
