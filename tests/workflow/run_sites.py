"""Deployments whose workers run the steps of workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text

from celery_workflow import Run, workflow
from celery_workflow.home import Home
from celery_workflow.runs.store import NewRun
from kombu_sqlqueue.options import DatabaseOptions

from ..celery.outboxes import OutboxSite
from ..celery.workers import Site, Worker, eventually
from .apps import prepare
from .run_app import define

__all__ = ["OutboxRunSite", "RunSite", "of_each_step"]


class _Runs(Site):
    """What is the same for brokers of all kinds."""

    def _prepare(self) -> None:
        prepare(self.app)
        self.tasks = define(self.app)
        self.flows = self.tasks.flows
        self.home = Home(self.app)
        self._named = 0

    def worker(
        self, *arguments: str, name: str | None = None, wait: bool = True, app: str = "tests.workflow.run_app"
    ) -> Worker:
        return super().worker(*arguments, name=name, wait=wait, app=app)

    def workflow(self, build: Any = None, **settings: Any) -> Any:
        """Decorator: a workflow that only this process knows. Its runs need no more."""
        if build is None:
            return lambda function: self.workflow(function, **settings)
        self._named += 1
        return workflow(self.app, **{"name": f"flow{self._named}", **settings})(build)

    def run(self, *signatures: Any, **settings: Any) -> Run:
        """Start a run of these steps, one after the other."""
        step = {
            key: settings.pop(key) for key in ("retry", "on_exhausted", "timeout", "queue", "priority") if key in settings
        }

        def build(w: Any) -> Any:
            last = None
            for signature in signatures:
                last = w.step(signature, after=() if last is None else last, **step)
            return last

        return self.workflow(build, **settings).start()

    def start_many(self, flow: Any, inputs: list[dict[str, Any]]) -> list[Run]:
        new: list[NewRun] = [flow.options().new(**each) for each in inputs]
        return list(self.flows.start_many(new))

    def ended(self, run: Run, timeout: float = 60.0) -> Run:
        """The run, once it is over."""
        eventually(lambda: run.stored.record.state.is_over, timeout)
        return run

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """A statement in the database, the tables of workflows and messages by their short names in braces."""
        tables = {name.removeprefix("workflow_"): table for name, table in _tables(self.home).items()}
        written = {name: table.fullname for name, table in tables.items()}
        given = text(statement.format_map(written))
        return self.home.database.run(lambda tx: [*rows] if (rows := tx.execute(given, values)).returns_rows else [])  # type: ignore[no-any-return]

    def messages(self) -> int:
        """How many tasks are on their way or running."""
        m = self.home.database.tables.message.c
        count = select(func.count()).where(m.task_id.is_not(None))
        return int(self.home.database.statement(lambda tx: tx.scalar(count)) or 0)


class RunSite(_Runs):
    """One database with its workers, and an app in this process that starts runs."""

    def __init__(self, database: DatabaseOptions, directory: Path, **conf: Any) -> None:
        super().__init__(database, directory, **conf)
        self._prepare()


class OutboxRunSite(_Runs, OutboxSite):
    """The same with a broker of another kind."""

    def __init__(self, database: DatabaseOptions, directory: Path, broker: str, **conf: Any) -> None:
        super().__init__(database, directory, broker, **conf)
        self._prepare()


def _tables(home: Home) -> dict[str, Any]:
    ours = {table.name: table for table in home.tables.metadata.tables.values()}
    queue = {f"queue_{table.name.rpartition('_')[2]}": table for table in home.database.tables.metadata.tables.values()}
    return {**queue, **ours}


def of_each_step(run: Run, state: str = "succeeded") -> dict[tuple[str, int | None], int]:
    """How often each step has come to this state, by the journal."""
    counts: dict[tuple[str, int | None], int] = {}
    for entry in run.journal():
        if entry.name is not None and entry.state == state:
            key = (entry.name, entry.index)
            counts[key] = counts.get(key, 0) + 1
    return counts
