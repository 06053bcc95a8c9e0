"""An app with schedules on each database, and a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import delete, select, text

from celery_workflow import Schedules
from celery_workflow.home import Home
from celery_workflow.schedules.firing import Firing
from celery_workflow.sql.migrate import line
from celery_workflow.sql.runs import SQLRunStore
from celery_workflow.sql.schema import Tables
from celery_workflow.testing import WorkflowHarness
from kombu_sqlqueue import process as processes
from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.migrate import upgrade

from . import tasks
from .apps import app_on, prepare, wipe_all
from .beats import Beats
from .recording import JSONText
from .run_sites import RunSite
from .worlds import World

PREFIX = "workflow_"
#: 2026-05-05 12:00 UTC, a Tuesday.
NOON = 1_777_982_400_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def app(database_options: DatabaseOptions, clock: FakeClock) -> Iterator[Celery]:
    """An app on each database in turn, without schedules, its time standing still."""
    # Statements are built with a clock or without: this process object is for this test alone.
    processes._processes.pop(database_options, None)
    process = process_for(database_options)
    process.database.clock = clock
    app = app_on(database_options)
    prepare(app)
    yield app
    app.close()
    wipe_all(app)
    process.close()
    processes._processes.pop(database_options, None)


@pytest.fixture
def make_beats(database_options: DatabaseOptions, tmp_path: Path) -> Iterator[Callable[..., Beats]]:
    """A site without schedules on each database in turn."""
    app = app_on(database_options)
    prepare(app)
    made: list[Beats] = []

    def make(**conf: Any) -> Beats:
        made.append(Beats(database_options, tmp_path, **conf))
        return made[-1]

    yield make
    for each in made:
        each.close()
    wipe_all(app)
    process_for(database_options).close()
    processes._processes.pop(database_options, None)


@pytest.fixture
def beats(make_beats: Callable[..., Beats]) -> Beats:
    return make_beats()


@pytest.fixture
def tables(database: Database) -> Iterator[Tables]:
    """The tables of workflows in each database in turn, empty."""
    upgrade(database, line(PREFIX))
    tables = Tables(PREFIX, database.options.schema)
    yield tables
    empty(database, tables)


@pytest.fixture
def runs(database: Database, tables: Tables) -> SQLRunStore:
    return SQLRunStore(database, tables, JSONText())


@pytest.fixture
def world(runs: SQLRunStore, database: Database, tables: Tables, clock: FakeClock) -> World:
    return World(runs, database, tables.runs, clock)


@pytest.fixture
def schedules(app: Celery) -> Schedules:
    return Schedules(app)


@pytest.fixture
def beat(app: Celery, clock: FakeClock) -> Iterator[Beat]:
    beat = Beat(app, clock)
    yield beat
    beat.firing.close()


@pytest.fixture
def harness() -> WorkflowHarness:
    """A world of its own, in which no task has done anything yet."""
    tasks.told.clear()
    tasks.failing.clear()
    return WorkflowHarness(tasks.app)


@pytest.fixture
def workflow_app() -> Celery:
    return tasks.app


def empty(database: Database, tables: Tables) -> None:
    """Leave the tables as the migrations made them."""
    emptied = [delete(table) for table in tables.metadata.tables.values() if table is not tables.release]
    database.run(lambda tx: [tx.execute(statement) for statement in emptied])


class Beat:
    """A node that fires when told, and what it left in the database."""

    def __init__(self, app: Celery, clock: FakeClock) -> None:
        self.app = app
        self.clock = clock
        self.home = Home(app)
        self.firing = Firing(app, self.home)

    def after(self, seconds: float) -> int:
        """Let so much time pass, fire what is due; how many schedules that were."""
        self.clock.advance(timedelta(seconds=seconds))
        return self.firing.run_once()

    def messages(self) -> list[Any]:
        """All messages, in the order in which they were sent."""
        m = self.home.database.tables.message
        return self.home.database.statement(lambda tx: tx.execute(select(m).order_by(m.c.id)).all())  # type: ignore[return-value]

    def end_tasks(self) -> None:
        """As if workers had run everything."""
        self.home.database.run(lambda tx: tx.execute(delete(self.home.database.tables.message)))

    def sql(self, statement: str) -> None:
        """A statement as an operator types it, on `schedule` and `tick`."""
        for table in self.home.tables.schedule, self.home.tables.tick:
            written = table.name if table.schema is None else f"{table.schema}.{table.name}"
            statement = statement.replace(f" {table.name.removeprefix('workflow_')} ", f" {written} ")
        self.home.database.run(lambda tx: tx.execute(text(statement)))


@pytest.fixture
def make_run_site(database_options: DatabaseOptions, tmp_path: Path) -> Iterator[Callable[..., RunSite]]:
    """Makes deployments on each database in turn; at the end their workers are killed and the tables emptied."""
    made: list[RunSite] = []

    def make(**conf: Any) -> RunSite:
        made.append(RunSite(database_options, tmp_path, **conf))
        return made[-1]

    yield make
    for each in made:
        each.close()
    if made:
        wipe_all(made[0].app)
    process_for(database_options).close()


@pytest.fixture
def run_site(make_run_site: Callable[..., RunSite]) -> RunSite:
    """A deployment with leases of 3 seconds, without a worker."""
    return make_run_site()


@pytest.fixture(scope="module")
def working_site(
    databases: dict[str, DatabaseOptions], database_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunSite]:
    """A deployment with a worker of two processes that all tests of a module share."""
    options = databases[database_name]
    site = RunSite(options, tmp_path_factory.mktemp("site"))
    site.worker("-c2", "-Q", "celery,special")
    yield site
    site.close()
    process_for(options).close()
    wipe_all(site.app)
