"""The `celery workflow` commands, as an operator types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_workflow import Schedules
from celery_workflow.commands import workflow
from celery_workflow.home import Home
from celery_workflow.schedules.zones import moment_of
from celery_workflow.sql.migrate import HEAD
from kombu_sqlqueue.clock import FakeClock

from .conftest import NOON, Beat

DATABASES = ["sqlite", "postgresql"]
Run = Callable[..., Result]


@pytest.fixture
def run(app: Celery) -> Run:
    return lambda *arguments: CliRunner().invoke(workflow, arguments, obj=SimpleNamespace(app=app))


def test_a_schedule_from_its_creation_to_its_end(run: Run, beat: Beat, clock: FakeClock):
    created = run(
        *("schedule", "create", "report", "tasks.report", "--cron", "*/5 * * * *", "--args", "[1]"),
        *("--options", '{"queue": "slow"}', "--set", "timezone=Europe/Vienna", "--set", "overlap=skip"),
    )
    assert created.stdout == "report: active, next tick 2026-05-05T12:05:00+00:00\n"
    assert "2026-05-05T12:05:00+00:00\n2026-05-05T12:10:00+00:00\n" in run("schedule", "preview", "report", "-n2").output

    beat.after(300)
    [message] = beat.messages()
    assert (message.task, message.queue) == ("tasks.report", "slow")
    [row] = json.loads(run("schedule", "list", "--json").output)
    assert (row["name"], row["spec"], row["state"], row["runs"]) == ("report", "*/5 * * * *", "active", 1)
    assert "report  tasks.report" in run("schedule", "list").output

    edited = run("schedule", "edit", "report", "--every", "60", "--set", "max_runs=3", "--set", "jitter=2.5")
    assert edited.output.startswith("report: active, next tick 2026-05-05T12:0")
    shown = json.loads(run("schedule", "show", "report").output)
    assert (shown["kind"], shown["spec"], shown["max_runs"], shown["jitter"]) == ("interval", "60", 3, 2.5)

    assert run("schedule", "pause", "report", "--note", "audit").output == "report is paused\n"
    assert json.loads(run("schedule", "show", "report").output)["note"] == "audit"
    clock.advance(timedelta(seconds=1))
    assert "fired: task" in run("schedule", "trigger", "report").output
    assert run("schedule", "resume", "report").output.startswith("report: active")

    [manual, fired] = json.loads(run("schedule", "history", "report", "--json").output)
    assert (manual["cause"], fired["cause"], fired["outcome"]) == ("manual", "schedule", "fired")
    assert run("schedule", "delete", "report", "--yes").exit_code == 0
    assert run("schedule", "list").output == "no schedules\n"


def test_a_task_that_the_app_does_not_have_is_doubted(run: Run, app: Celery):
    """It may be another program's: the schedule is created."""

    @app.task(name="tasks.report", shared=False)
    def report() -> None: ...

    doubted = run("schedule", "create", "b", "tasks.reprot", "--every", "60")

    assert doubted.stdout.startswith("b: active, next tick")
    assert doubted.stderr == (
        "this app has no task 'tasks.reprot', and a worker that knows none parks what it gets; did you mean tasks.report?\n"
    )
    assert run("schedule", "create", "c", "tasks.report", "--every", "60").stderr == ""


def test_a_range_is_backfilled(run: Run, schedules: Schedules):
    schedules.create("each", "tasks.do", "* * * * *")
    start, end = (moment_of(NOON - minutes * 60_000_000).isoformat() for minutes in (5, 2))

    assert run("schedule", "backfill", "each", start, end).output == "3 ticks of each fired\n"


def test_the_configuration_is_synced_and_a_dry_run_only_shows(run: Run, app: Celery):
    app.conf.beat_schedule = {"a": {"task": "t", "schedule": 60}}

    assert run("schedule", "sync", "--dry-run").output == "create a\n"
    assert run("schedule", "list").output == "no schedules\n"
    assert run("schedule", "sync").output == "create a\n"
    assert run("schedule", "sync").output == "nothing to change\n"
    run("schedule", "edit", "a", "--every", "30")
    app.conf.beat_schedule = {"a": {"task": "t", "schedule": 90}}
    assert run("schedule", "sync", "--dry-run").output == "change a\n    kept as edited: spec\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "a", "t"), "give one of --cron, --every or --at"),
        (("create", "a", "t", "--cron", "x", "--every", "5"), "give only one"),
        (("create", "a", "t", "--cron", "x"), "cron is 'x'"),
        (("create", "a", "t", "--at", "2030-01-01T00:00:00"), "has no time zone"),
        (("create", "a", "t", "--every", "5", "--set", "jitter"), "must be FIELD=VALUE"),
        (("create", "a", "t", "--every", "5", "--set", "jitter=soon"), "must be seconds"),
        (("create", "a", "t", "--every", "5", "--set", "color=red"), "unknown color"),
        (("create", "a", "t", "--every", "5", "--args", "[1"), "--args '[1' is no JSON"),
        (("create", "a", "t", "--every", "5", "--args", "5"), "args is 5, but must be a list"),
        (("create", "a", "t", "--every", "5", "--kwargs", "[1]"), "kwargs is [1], but must be a mapping"),
        (("show", "nobody"), "there is no schedule 'nobody'"),
        (("pause", "nobody"), "there is no schedule 'nobody'"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, arguments: tuple[str, ...], says: str):
    done = run("schedule", *arguments)

    assert done.exit_code != 0
    assert says in done.output
    assert "Traceback" not in done.output


def test_the_tables_are_made_and_checked(run: Run, app: Celery):
    assert f"the tables are at schema {HEAD}, as this release needs" in run("check").output
    assert run("migrate", "--sql").output == ""
    assert HEAD in run("migrate").output


def test_an_app_without_a_database_is_told_what_to_name():
    app = Celery("foreign", broker="redis://127.0.0.1:6379/9", set_as_current=False)
    done = CliRunner().invoke(workflow, ["schedule", "list"], obj=SimpleNamespace(app=app))

    assert done.exit_code == 1
    assert "workflow_store_url" in done.output
    with pytest.raises(ValueError, match="workflow_store_url"):
        Home(app)
