"""Follows a run until it ends: on a terminal a picture that is redrawn, elsewhere a line for each change."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

import click
from celery import Celery

from ..engine.definition import Definition, Role
from ..engine.journal import Entry
from ..engine.records import RunRecord, StepRecord
from ..engine.states import RunState, StepState
from ..runs.handle import Run
from ..runs.runtime import runtime_of
from ..runs.store import RunStore
from .printing import entry_object, time_of

__all__ = ["follow"]

#: Seconds between two looks, from just after a change to when nothing has changed for a while.
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
#: How many entries of the journal are read at once.
PAGE = 1000
BAR = 30
UP, CLEAR_LINE, CLEAR_BELOW = "\x1b[{}A", "\x1b[2K", "\x1b[J"
COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "upstream_failed": "yellow",
    "cancelled": "yellow",
    "running": "cyan",
    "sent": "cyan",
    "mapping": "cyan",
    "expanded": "cyan",
    "awaiting": "magenta",
    "sleeping": "magenta",
}


class Display(Protocol):
    def show(self, record: RunRecord) -> bool:
        """Show how the run stands; whether anything is new."""


def follow(app: Celery, run: Run, *, as_json: bool) -> bool:
    """Show a run until it ends; whether it succeeded."""
    store = runtime_of(app).store
    on_screen = sys.stdout.isatty() and not as_json
    display: Display = Screen(store, run) if on_screen else Lines(store, run, as_json=as_json)
    pause = SHORTEST_PAUSE
    while True:
        # First the run, then the rest: of a run that is over, the rest is whole.
        record = run.stored.record
        is_new = display.show(record)
        if record.state.is_over:
            return record.state is RunState.SUCCEEDED
        pause = SHORTEST_PAUSE if is_new else min(LONGEST_PAUSE, pause * 1.5)
        time.sleep(pause)


class Lines:
    """A line, or a JSON object, for each entry of the journal."""

    def __init__(self, store: RunStore, run: Run, *, as_json: bool) -> None:
        self._store = store
        self._run = run
        self._as_json = as_json
        self._seen = 0

    def show(self, record: RunRecord) -> bool:
        before = self._seen
        for entry in self._new():
            click.echo(json.dumps(entry_object(entry)) if self._as_json else _line(entry))
        return self._seen > before

    def _new(self) -> Iterator[Entry]:
        while page := self._store.journal(self._run.id, after=self._seen, limit=PAGE):
            for number, entry in page:
                self._seen = number
                yield entry


class Screen:
    """The steps and a bar, drawn over what was drawn before."""

    def __init__(self, store: RunStore, run: Run) -> None:
        self._store = store
        self._run = run
        self._definition: Definition = run.stored.definition
        self._drawn: list[str] = []

    def show(self, record: RunRecord) -> bool:
        size = shutil.get_terminal_size()
        lines = list(self._lines(record, size.lines - 1, size.columns))
        is_new = lines != self._drawn
        if is_new:
            up = UP.format(len(self._drawn)) if self._drawn else ""
            click.echo(up + "".join(f"{CLEAR_LINE}{line}\n" for line in lines) + CLEAR_BELOW, nl=False)
            self._drawn = lines
        return is_new

    def _lines(self, record: RunRecord, height: int, width: int) -> Iterator[str]:
        definition = self._definition
        yield f"{definition.name}  {record.id[: max(8, width - len(definition.name) - 20)]}  {_coloured(str(record.state))}"
        yield _bar(self._run.progress())
        rows = {row.name: row for row in self._store.steps(self._run.id)}
        steps = [
            rows.get(step.name, StepRecord(name=step.name))
            for step in definition.steps
            if step.role is Role.MAIN or step.name in rows
        ]
        shown = _most_telling(steps, max(1, height - 4))
        name_width = min(40, max((len(step.name) for step in shown), default=0))
        for step in shown:
            yield f"  {step.name[:name_width].ljust(name_width)}  {_coloured(str(step.state))}{_remark(step, width - name_width - 24)}"
        if len(shown) < len(steps):
            yield f"  and {len(steps) - len(shown)} more"
        if record.state.is_over and (
            why := f"{record.error.type}: {record.error.message}" if record.error else record.reason
        ):
            yield why.splitlines()[0][:width]


def _most_telling(steps: list[StepRecord], most: int) -> list[StepRecord]:
    """As many as there is room for, in their order: those at which something happens before those that wait or are over."""
    if len(steps) <= most:
        return steps
    rank = lambda step: 2 if step.state is StepState.PENDING else 1 if step.state.is_over and not step.state.is_bad else 0
    chosen = {step.name for step in sorted(steps, key=rank)[:most]}
    return [step for step in steps if step.name in chosen]


def _bar(progress: Any) -> str:
    counts = {state: count for state, count in progress.items() if count and state != "total"}
    over = sum(count for state, count in counts.items() if StepState(state).is_over)
    total = progress["total"]
    full = BAR * over // total if total else BAR
    others = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "succeeded")
    return f"[{'#' * full}{'.' * (BAR - full)}] {over} of {total} done{f' ({others})' if others else ''}"


def _remark(step: StepRecord, width: int) -> str:
    said = []
    if step.total is not None:
        said.append(f"{step.done}/{step.total}" + (f", {step.failed_items} failed" if step.failed_items else ""))
    if step.attempt > 1:
        said.append(f"attempt {step.attempt}")
    if step.due_at is not None and not step.state.is_over:
        said.append(f"until {str(time_of(step.due_at))[:19].replace('T', ' ')}")
    if step.error is not None:
        said.append(f"{step.error.type}: {step.error.message}".splitlines()[0])
    return f"  {', '.join(said)[: max(0, width)]}" if said else ""


def _coloured(state: str) -> str:
    return click.style(state, fg=COLOURS.get(state)) + " " * max(0, 15 - len(state))


def _line(entry: Entry) -> str:
    what = "run" if entry.name is None else entry.name if entry.index is None else f"{entry.name}[{entry.index}]"
    items = f" ({entry.count} items)" if entry.count > 1 else ""
    attempt = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
    error = f": {entry.error.type}: {entry.error.message}".splitlines()[0] if entry.error else ""
    return f"{str(time_of(entry.at))[11:19]}  {what}{items} {entry.state} ({entry.why}{attempt}){error}"
