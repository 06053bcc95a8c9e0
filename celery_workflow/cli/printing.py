"""How the commands speak: tables or JSON, moments, one line for what is wrong; and how they read what was typed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import click
from kombu.exceptions import OperationalError

from kombu_sqlqueue.errors import SQLQueueError

from ..engine.journal import Entry
from ..errors import WorkflowError
from ..schedules.zones import moment_of

__all__ = ["assignment", "entry_object", "errors", "moment", "print_json", "print_rows", "text_of", "time_of", "value_of"]


@contextmanager
def errors() -> Iterator[None]:
    """Show our errors as a line, not as a traceback."""
    try:
        yield
    except (SQLQueueError, WorkflowError, OperationalError) as error:
        raise click.ClickException(str(error)) from error


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool = False, empty: str = "") -> None:
    """A list of JSON objects, or a table under the names of the first row's fields; `empty` if there are none."""
    if as_json:
        print_json(rows)
    elif rows:
        cells = [list(rows[0]), *([text_of(value) for value in row.values()] for row in rows)]
        widths = [max(map(len, each)) for each in zip(*cells, strict=True)]
        for line in cells:
            click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    elif empty:
        click.echo(empty)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=_plain))


def text_of(value: object) -> str:
    """A cell of a table."""
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def time_of(instant: int | None) -> str | None:
    """ISO 8601 of microseconds since 1970."""
    return None if instant is None else moment_of(instant).isoformat()


def moment(text: str) -> datetime:
    """What was typed as a moment. Raises ClickException unless it is ISO 8601 with a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.ClickException(f"{text!r} is no moment like 2030-01-31T12:00:00+00:00") from error
    if found.tzinfo is None:
        raise click.ClickException(f"{text!r} has no time zone: write 2030-01-31T12:00:00+00:00")
    return found


def assignment(text: str, *, option: str, shape: str) -> tuple[str, str]:
    """What was typed as NAME=VALUE. Raises ClickException that names the option and the shape."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.ClickException(f"{option} {text!r} must be {shape}")
    return name, value


def value_of(text: str) -> Any:
    """What was typed as JSON, or else as a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def entry_object(entry: Entry) -> dict[str, Any]:
    """An entry of a run's journal, for JSON."""
    return {
        "at": time_of(entry.at),
        "step": entry.name,
        "index": entry.index,
        "count": entry.count,
        "state": entry.state,
        "why": entry.why,
        "epoch": entry.epoch,
        "attempt": entry.attempt,
        "error": entry.error and entry.error.as_dict(),
    }


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else str(value)
