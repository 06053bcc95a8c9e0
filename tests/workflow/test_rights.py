"""The role that docs/security.md describes can do all work with schedules and runs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy.engine import make_url

from celery_workflow import Schedules
from celery_workflow.engine.definition import Sleep, Step
from celery_workflow.engine.events import RerunRequested, SignalReceived
from celery_workflow.engine.records import Key
from celery_workflow.engine.states import RunState
from celery_workflow.home import Home
from celery_workflow.schedules.firing import Firing
from celery_workflow.schedules.zones import moment_of
from celery_workflow.sql.runs import SQLRunStore
from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from .apps import app_on
from .graphs import task
from .recording import JSONText
from .worlds import World

DATABASES = ["postgresql"]
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture
def limited(app: Celery, database_options: DatabaseOptions) -> Iterator[Celery]:
    """The app of a role that has what the page grants, and no more."""
    role, schema, database = f"sqlqueue_{uuid.uuid4().hex[:8]}", database_options.schema, Home(app).database
    grants = re.findall(r"^GRANT [^;]* TO sqlqueue_app;", PAGE.read_text(), re.MULTILINE)
    assert any("workflow_schedule" in grant for grant in grants)
    granted = [grant.replace("sqlqueue_app", role) for grant in grants]
    made = [f"CREATE ROLE {role}", f"GRANT USAGE ON SCHEMA {schema} TO {role}", f"SET LOCAL search_path TO {schema}"]
    database.run(lambda tx: [tx.exec_driver_sql(statement) for statement in [*made, *granted]])
    url = make_url(database_options.url).update_query_dict({"options": f"-c role={role}"})
    options = DatabaseOptions(url.render_as_string(hide_password=False), schema=schema)
    limited = app_on(options)
    yield limited
    limited.close()
    process_for(options).close()
    database.run(lambda tx: [tx.exec_driver_sql(each) for each in (f"DROP OWNED BY {role}", f"DROP ROLE {role}")])


def test_the_working_role_can_do_all_work_with_schedules(limited: Celery):
    schedules, firing = Schedules(limited), Firing(limited, Home(limited))
    schedules.sync({"synced": {"task": "t", "schedule": 60}})
    schedules.create("each", "tasks.do", 0.001, misfire="fire_all")
    while not firing.run_once():
        pass
    schedules.edit("each", schedule=60)
    schedules.trigger("each")
    now = moment_of(Home(limited).store().now())
    assert schedules.backfill("each", now.replace(year=now.year - 1), now.replace(year=now.year - 1)) == ()
    schedules.pause("each")
    schedules.resume("each")

    assert {str(tick.outcome) for tick in schedules.history("each")} == {"fired"}
    assert schedules.get("each").error is None
    schedules.delete("each")


def test_the_working_role_can_do_all_work_with_runs(limited: Celery):
    home, clock = Home(limited), FakeClock()
    home.database.clock = clock
    world = World(SQLRunStore(home.database, home.tables, JSONText()), home.database, home.tables.runs, clock)
    for run_id in ("one", "two"):
        world.start(task("s"), Step(name="nap", action=Sleep(seconds=1)), id=run_id, concurrency_key="k", labels={"x": "y"})
    world.store.keep_memo("one", Key("s"), "m", 1)
    world.give(SignalReceived(at=clock.now(), id="1", name="x"), "one")
    world.succeed("s", run_id="one")
    world.after(1)
    world.fail("s", run_id="two")
    world.give(RerunRequested(at=clock.now(), epoch=1, scope="all"), "one")
    world.succeed("s", run_id="one")
    world.after(1)

    assert (world.state("one"), world.state("two")) == (RunState.SUCCEEDED, RunState.FAILED)
    clock.advance(timedelta(days=1))
    assert world.store.prune(older_than=timedelta(hours=1), limit=10) == 2
