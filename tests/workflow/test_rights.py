"""The role that docs/security.md describes can do all work with schedules."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy.engine import make_url

from celery_workflow import Schedules
from celery_workflow.home import Home
from celery_workflow.schedules.firing import Firing
from celery_workflow.schedules.zones import moment_of
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from .apps import app_on

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
