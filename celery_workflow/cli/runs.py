"""What the ``celery workflow`` commands about runs do."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import click
from celery import Celery

from ..engine.definition import Wait
from ..engine.states import RunState
from ..engine.values import RUN
from ..errors import DuplicateRunError, RunNotFoundError
from ..runs.api import Workflows
from ..runs.handle import Run, StepInfo
from ..runs.store import Listed
from .printing import assignment, entry_object, moment, print_json, print_rows, time_of, value_of
from .watching import follow

#: How many runs one transaction deletes.
PRUNED_AT_ONCE = 1000
#: How many characters of an input or result are shown to people.
LONGEST_FACT = 1000


def list_(
    app: Celery,
    *,
    statuses: Sequence[str],
    labels: Sequence[str],
    limit: int,
    as_json: bool,
    **query: Any,
) -> None:
    """Print the runs for which all of this holds."""
    found = Workflows(app).runs(status=statuses, labels=_labels(labels), limit=limit, **query)
    if as_json:
        print_json([_listed(run) for run in found])
        return
    print_rows([_listed_row(run) for run in found], empty="no runs")
    if len(found) == limit:
        click.echo(f"there may be more: --cursor {found[-1].number}", err=True)


def show(app: Celery, run_id: str, *, journal: bool, as_json: bool) -> None:
    """Print all that is known of a run."""
    run = _run(app, run_id)
    facts, steps, errors = _facts(run), run.steps(), run.errors
    entries = [entry_object(entry) for entry in run.journal()] if journal else []
    if as_json:
        said = {
            **facts,
            "steps": [_step(step) for step in steps.values()],
            "errors": [{**each, "at": each["at"].isoformat(), "error": each["error"].as_dict()} for each in errors],
        }
        print_json({**said, "journal": entries} if journal else said)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if value not in (None, "", {}):
            click.echo(f"{name.ljust(width)}  {_fact(value)}")
    _section("steps", [_step_row(step) for step in steps.values()])
    _section("errors", [_error_row(each) for each in errors])
    _section("journal", [_entry_row(entry) for entry in entries])


def graph(app: Celery, run_id: str, *, form: str) -> None:
    """Print the graph of a run."""
    click.echo(_run(app, run_id).graph(form))


def start(
    app: Celery,
    name: str,
    *,
    inputs: Sequence[str],
    run_id: str | None,
    labels: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Start a run and print its id."""
    known = _known(app)
    if name not in known:
        raise click.ClickException(_no_workflow(name, known))
    given = dict(assignment(text, option="--input", shape="NAME=JSON") for text in inputs)
    eta = options.pop("eta")
    starter = known[name].options(
        id=run_id, on_conflict="raise", labels=_labels(labels), eta=None if eta is None else moment(eta), **options
    )
    try:
        run = starter.start(**{key: value_of(value) for key, value in given.items()})
    except DuplicateRunError as error:
        raise click.ClickException(f"{error}: celery workflow show {run_id}") from error
    except (TypeError, ValueError) as error:
        raise click.ClickException(f"workflow {name} cannot be started with these inputs: {error}") from error
    if as_json:
        print_json({"id": run.id, "workflow": name})
    else:
        click.echo(run.id)


def signal(app: Celery, run_id: str, name: str, payload: str | None, *, signal_id: str | None) -> None:
    """Send a signal, and say what becomes of it."""
    run = _run(app, run_id)
    if not run.signal(name, None if payload is None else value_of(payload), id=signal_id):
        click.echo(f"run {run_id} has had a signal of id {signal_id} already: ignored")
        return
    record = run.stored.record
    over = f", which ended as {record.state}: it is kept in case that is done again" if record.state.is_over else ""
    click.echo(f"signal {name} is with run {run_id}{over}")
    waits = sorted({step.action.signal for step in run.stored.definition.steps if isinstance(step.action, Wait)})
    if name not in waits:
        click.echo(
            f"no step of it waits for that, but for {', '.join(waits)}" if waits else "no step of it waits for any", err=True
        )


def cancel(app: Celery, run_id: str, *, reason: str, children: bool) -> None:
    """Cancel a run."""
    run = _run(app, run_id)
    if not run.cancel(reason, children=children):
        raise click.ClickException(f"run {run_id} is {run.status}: there is nothing left to cancel")
    _standing(run)


def retry(app: Celery, run_id: str) -> None:
    """Go on from what failed."""
    run = _run(app, run_id)
    run.retry()
    _standing(run)


def rerun(app: Celery, run_id: str, *, from_step: str | None, scope: str | None) -> None:
    """Do a run, or a part of it, again."""
    run = _run(app, run_id)
    if from_step is None and scope in ("step", "downstream"):
        raise click.ClickException(f"--scope {scope} needs the step to do again: --from-step STEP")
    run.rerun(from_step=from_step, scope=scope)
    _standing(run)


def watch(app: Celery, run_id: str, *, as_json: bool) -> bool:
    """Show a run until it ends; whether it succeeded."""
    return follow(app, _run(app, run_id), as_json=as_json)


def prune(app: Celery, *, days: float, as_json: bool) -> None:
    """Delete all runs that ended so many days ago."""
    flows, deleted = Workflows(app), 0
    while gone := flows.prune(older_than=timedelta(days=days), limit=PRUNED_AT_ONCE):
        deleted += gone
    if as_json:
        print_json({"deleted": deleted})
    else:
        click.echo(f"{deleted} {'run' if deleted == 1 else 'runs'} deleted")


def reconcile(app: Celery, *, as_json: bool) -> None:
    """Move what stood still, and print what that was."""
    found = Workflows(app).reconcile()
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(found) or "nothing stands still")


def _run(app: Celery, run_id: str) -> Run:
    try:
        return Workflows(app).get(run_id)
    except RunNotFoundError as error:
        known = _known(app)
        if run_id in known:
            raise click.ClickException(
                f"{run_id!r} is a workflow, and this needs the id of a run of it, whose graph its inputs decide:"
                f" celery workflow list --name {run_id}"
            ) from error
        raise click.ClickException(f"there is no run {run_id!r}: celery workflow list shows those there are") from error


def _known(app: Celery) -> Mapping[str, Any]:
    """The workflows of the app; its modules of tasks are imported for that."""
    app.loader.import_default_modules()
    return Workflows(app).workflows


def _no_workflow(name: str, known: Mapping[str, Any]) -> str:
    if not known:
        return f"no workflow {name!r}, nor any other: name the app that declares it by celery -A APP workflow start"
    near = difflib.get_close_matches(name, known, n=3)
    way_out = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(known))}"
    return f"the app has no workflow {name!r}; {way_out}"


def _labels(texts: Sequence[str]) -> dict[str, str]:
    return dict(assignment(text, option="--label", shape="KEY=VALUE") for text in texts)


def _standing(run: Run) -> None:
    click.echo(f"run {run.id} is {run.status}")


def _listed(run: Listed) -> dict[str, Any]:
    return {
        "number": run.number,
        "id": run.id,
        "workflow": run.workflow,
        "version": run.version,
        "status": str(run.state),
        "labels": dict(run.labels),
        "tenant": run.tenant,
        "created_at": time_of(run.created_at),
        "started_at": time_of(run.started_at),
        "finished_at": time_of(run.finished_at),
        "failed_step": run.failed_step,
        "error": run.error or None,
    }


def _listed_row(run: Listed) -> dict[str, Any]:
    return {
        "id": run.id,
        "workflow": run.workflow,
        "status": run.state,
        "created": _second(time_of(run.created_at)),
        "finished": _second(time_of(run.finished_at)),
        "failed_step": run.failed_step,
        "labels": ",".join(f"{name}={value}" for name, value in run.labels.items()) or None,
    }


def _facts(run: Run) -> dict[str, Any]:
    stored = run.stored
    record = stored.record
    return {
        "id": run.id,
        "workflow": stored.definition.name,
        "version": stored.definition.version,
        "status": str(record.state),
        "reason": record.reason or None,
        "failed_step": record.failed_step,
        "error": f"{record.error.type}: {record.error.message}" if record.error else None,
        "result": run.step_result(RUN) if record.state is RunState.SUCCEEDED else None,
        "inputs": dict(stored.inputs),
        "labels": dict(stored.labels),
        "tenant": stored.tenant,
        "priority": stored.priority,
        "concurrency_key": record.concurrency_key,
        "parent": record.parent and record.parent.run_id,
        "epoch": record.epoch,
        "created_at": time_of(record.created_at),
        "started_at": time_of(record.started_at),
        "finished_at": time_of(record.finished_at),
        "deadline_at": time_of(record.deadline_at),
        "progress": dict(run.progress()),
    }


def _fact(value: Any) -> str:
    """One line for people; --json has all of it."""
    text = json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= LONGEST_FACT else f"{text[:LONGEST_FACT]}…"


def _step(step: StepInfo) -> dict[str, Any]:
    return {
        "name": step.name,
        "status": step.status,
        "attempt": step.attempt,
        "epoch": step.epoch,
        "task": step.task,
        "task_id": step.task_id,
        "result": step.result,
        "error": step.error and step.error.as_dict(),
        "changed_at": step.changed_at and step.changed_at.isoformat(),
        "waits_until": step.waits_until and step.waits_until.isoformat(),
        "child_id": step.child_id,
        "items": step.items,
        "items_done": step.items_done,
        "items_failed": step.items_failed,
    }


def _step_row(step: StepInfo) -> dict[str, Any]:
    items = None if step.items is None else f"{step.items_done}/{step.items}"
    return {
        "name": step.name,
        "status": step.status,
        "attempt": step.attempt or None,
        "items": items,
        "waits until": _second(step.waits_until.isoformat() if step.waits_until else None),
        "child": step.child_id,
        "error": _said(step.error.as_dict() if step.error else None),
    }


def _error_row(each: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "at": _second(each["at"].isoformat()),
        "step": _which(each["step"], each["index"]),
        "attempt": each["attempt"] or None,
        "error": _said(each["error"].as_dict()),
    }


def _entry_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "at": entry["at"],
        "step": _which(entry["step"], entry["index"]) or "(run)",
        "state": entry["state"],
        "why": entry["why"],
        "epoch": entry["epoch"],
        "attempt": entry["attempt"] or None,
        "error": _said(entry["error"]),
    }


def _section(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table without the columns that are empty."""
    if rows:
        click.echo(f"\n{title}")
        full = [name for name in rows[0] if any(row[name] is not None for row in rows)]
        print_rows([{name: row[name] for name in full} for row in rows])


def _which(step: str | None, index: int | None) -> str | None:
    return step if index is None else f"{step}[{index}]"


def _said(error: Mapping[str, str] | None) -> str | None:
    return None if error is None else f"{error['type']}: {error['message']}".splitlines()[0]


def _second(moment: str | None) -> str | None:
    """Without the fraction and zone, which is UTC: a table is for people."""
    return None if moment is None else moment[:19].replace("T", " ")
