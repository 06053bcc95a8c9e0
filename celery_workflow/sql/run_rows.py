"""Rows of runs, steps, signals and journals, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine.journal import Entry
from ..engine.records import Key, Parent, RunRecord, SignalRecord, StepRecord
from ..engine.states import RunState, StepState
from .run_schema import NO_INDEX
from .run_text import Values, checked_name, storable_text

__all__ = [
    "RUN_COLUMNS",
    "RUN_STATE",
    "STEP_COLUMNS",
    "entry_of",
    "index_of",
    "key_of",
    "row_of_entry",
    "row_of_run",
    "row_of_signal",
    "row_of_step",
    "run_of",
    "signal_of",
    "step_of",
    "stored_index",
]

#: Columns that are called as the fields are and hold the same.
SAME_IN_RUN = (
    *("id", "failed_step", "epoch", "unfinished", "bad", "completions", "signals"),
    *("created_at", "started_at", "finished_at", "deadline_at", "concurrency_key", "root_id"),
)
SAME_IN_STEP = (
    *("name", "epoch", "attempt", "failures", "retries", "waits_for", "first_due_at", "changed_at", "due_at"),
    *("child_id", "child_epoch", "total", "inserted", "sent", "done", "failed_items"),
)
#: Columns of flags and others, with their fields.
FLAGS = {"upstream_failed": "upstream_failed", "cascades": "cascade", "expanding": "expanding", "stopped": "stopped"}
RENAMED = {"place": "order", "next_item": "cursor"}

#: What a record of a run is made of, and those of it that change.
RUN_COLUMNS = (*SAME_IN_RUN, "state", "ending", "reason", "error", "request", "parent_run", "parent_step", "parent_idx")
RUN_STATE = (
    *("state", "ending", "reason", "error", "failed_step", "epoch", "unfinished", "bad", "completions", "signals"),
    *("started_at", "finished_at", "deadline_at", "request", "changed_at"),
)
#: What a record of a step is made of, besides the run.
STEP_COLUMNS = (*SAME_IN_STEP, *FLAGS, *RENAMED, "idx", "state", "error", "value")


def stored_index(index: int | None) -> int:
    return NO_INDEX if index is None else index


def index_of(stored: int) -> int | None:
    return None if stored == NO_INDEX else stored


def row_of_run(run: RunRecord, values: Values) -> dict[str, Any]:
    """The columns of a record. Raises ValueError for names that cannot be stored."""
    parent = run.parent
    return {name: getattr(run, name) for name in SAME_IN_RUN} | {
        "state": run.state.value,
        "ending": None if run.ending is None else run.ending.value,
        "reason": storable_text(run.reason) or None,
        "error": values.dumps_given(run.error),
        "request": values.dumps_given(run.request),
        "parent_run": None if parent is None else parent.run_id,
        "parent_step": None if parent is None else parent.name,
        "parent_idx": None if parent is None else stored_index(parent.index),
    }


def run_of(row: Mapping[Any, Any], values: Values) -> RunRecord:
    is_child = row["parent_run"] is not None
    return RunRecord(
        **{name: row[name] for name in SAME_IN_RUN},
        state=RunState(row["state"]),
        ending=None if row["ending"] is None else RunState(row["ending"]),
        reason=row["reason"] or "",
        error=values.loads_given(row["error"]),
        request=values.loads_given(row["request"]),
        parent=Parent(row["parent_run"], row["parent_step"], index_of(row["parent_idx"])) if is_child else None,
    )


def row_of_step(step: StepRecord, values: Values) -> dict[str, Any]:
    return {
        **{name: getattr(step, name) for name in SAME_IN_STEP},
        **{column: int(getattr(step, field)) for column, field in FLAGS.items()},
        **{column: getattr(step, field) for column, field in RENAMED.items()},
        "idx": stored_index(step.index),
        "state": step.state.value,
        "error": values.dumps_given(step.error),
        "value": values.dumps_given(step.value),
    }


def step_of(row: Mapping[Any, Any], values: Values) -> StepRecord:
    fields = {name: row[name] for name in SAME_IN_STEP} | {field: row[column] for column, field in RENAMED.items()}
    return StepRecord(
        **fields | {field: bool(row[column]) for column, field in FLAGS.items()},
        index=index_of(row["idx"]),
        state=StepState(row["state"]),
        error=values.loads_given(row["error"]),
        value=values.loads_given(row["value"]),
    )


def row_of_signal(number: int, signal: SignalRecord, values: Values) -> dict[str, Any]:
    """Raises ValueError for an id or a name that cannot be stored."""
    return {
        "run": number,
        "id": checked_name("signal id", signal.id),
        "name": checked_name("signal", signal.name),
        "payload": values.dumps(signal.payload),
        "place": signal.order,
        "received_at": signal.received_at,
        "taken_by": signal.taken_by,
    }


def signal_of(row: Mapping[Any, Any], values: Values) -> SignalRecord:
    return SignalRecord(
        id=row["id"],
        name=row["name"],
        payload=values.loads(row["payload"]),
        order=row["place"],
        received_at=row["received_at"],
        taken_by=row["taken_by"],
    )


def row_of_entry(number: int, entry: Entry, values: Values) -> dict[str, Any]:
    return {
        "run": number,
        "at": entry.at,
        "state": entry.state,
        "why": entry.why,
        "epoch": entry.epoch,
        "name": entry.name,
        "idx": stored_index(entry.index),
        "attempt": entry.attempt,
        "items": entry.count,
        "error": values.dumps_given(entry.error),
    }


def entry_of(row: Mapping[Any, Any], values: Values) -> Entry:
    return Entry(
        at=row["at"],
        state=row["state"],
        why=row["why"],
        epoch=row["epoch"],
        name=row["name"],
        index=index_of(row["idx"]),
        attempt=row["attempt"],
        error=values.loads_given(row["error"]),
        count=row["items"],
    )


def key_of(row: Mapping[Any, Any]) -> Key:
    return Key(row["name"], index_of(row["idx"]))
