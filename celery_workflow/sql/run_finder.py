"""Which of all runs somebody asks for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, literal, select

from kombu_sqlqueue.sql.database import Database

from ..engine.states import RunState, StepState
from ..runs.store import Listed, Query
from .run_schema import RunTables
from .run_text import Values

__all__ = ["RunFinder", "listed_of"]

MICROSECOND = timedelta(microseconds=1)
UNFINISHED = tuple(state.value for state in RunState if not state.is_over)
WAITING = {"timer": StepState.SLEEPING, "signal": StepState.AWAITING}
LISTED = (
    *("number", "id", "workflow", "version", "state", "labels", "tenant"),
    *("created_at", "started_at", "finished_at", "failed_step", "error"),
)


class RunFinder:
    """Makes queries over the runs of one database."""

    def __init__(self, database: Database, tables: RunTables) -> None:
        self._database = database
        self._tables = tables

    def find(self, query: Query, before: int | None) -> Select[Any]:
        """The newest first."""
        run = self._tables.run.c
        found = select(*(run[name] for name in LISTED)).where(*self._conditions(query)).order_by(run.number.desc())
        return found if before is None else found.where(run.number < before)

    def stalled(self, quiet_for: timedelta, after: int) -> Select[Any]:
        """By number."""
        run = self._tables.run.c
        quiet = run.changed_at < self._database.now() - literal(quiet_for // MICROSECOND)
        stalled = select(run.number, run.id).where(run.state.in_(UNFINISHED), run.number > after, quiet)
        return stalled.order_by(run.number)

    def _conditions(self, query: Query) -> list[Any]:
        run, label, step = self._tables.run.c, self._tables.label.c, self._tables.step.c
        same = {"workflow": query.workflow, "tenant": query.tenant, "failed_step": query.failed_step}
        conditions = [run[name] == value for name, value in same.items() if value is not None]
        if query.states:
            conditions.append(run.state.in_([state.value for state in query.states]))
        for name, value in query.labels.items():
            conditions.append(run.number.in_(select(label.run).where(label.name == name, label.value == value)))
        if query.waiting is not None:
            waits = select(step.run).where(step.run == run.number, step.state == WAITING[query.waiting].value).limit(1)
            # With EXISTS MariaDB would gather all such steps first.
            conditions += [run.state.in_(UNFINISHED), waits.scalar_subquery().is_not(None)]
        return conditions


def listed_of(row: Mapping[Any, Any], values: Values) -> Listed:
    error = values.loads_given(row["error"])
    told = {name: row[name] for name in LISTED} | {
        "state": RunState(row["state"]),
        "labels": values.loads_given(row["labels"]) or {},
        "error": f"{error.type}: {error.message}" if error else "",
    }
    return Listed(**told)
