"""Schedules of other schedulers, as these have stored them themselves."""

from __future__ import annotations

import shelve
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import crontab, schedule
from click.testing import CliRunner

from celery_workflow import Schedules
from celery_workflow.commands import workflow

DATABASES = ["sqlite"]
REDIS = "redis://127.0.0.1:6379/9"


def imported(app: Celery, *arguments: str) -> str:
    done = CliRunner().invoke(workflow, ["schedule", "import", *arguments], obj=SimpleNamespace(app=app))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_tasks_of_django_celery_beat(app: Celery, schedules: Schedules, tmp_path: Path):
    pytest.importorskip("django_celery_beat")
    file = tmp_path / "django.db"
    subprocess.run(
        [sys.executable, "-m", "tests.workflow.django_tasks", str(file)], check=True, cwd=Path(__file__).parents[2]
    )
    url = f"sqlite:///{file}"

    shown = imported(app, "django-celery-beat", url, "--dry-run")
    assert "would create cron: tasks.do, crontab 30 9 * * 1-5 (Europe/Vienna)" in shown
    assert list(schedules) == []
    imported(app, "django-celery-beat", url)
    cron = schedules.get("cron").definition
    assert (cron.args, cron.kwargs) == ([1], {"x": 2})
    assert cron.options == {"queue": "slow", "priority": 3, "headers": {"tenant": "x"}}
    interval = schedules.get("interval").definition
    assert (interval.kind, interval.spec, interval.enabled, interval.options) == ("interval", "600", False, {"expires": 60})
    solar = schedules.get("solar").definition
    assert (solar.spec, solar.start_at) == ("sunset 48.2 16.4", datetime(2026, 6, 1, tzinfo=UTC))
    assert solar.end_at == datetime(2027, 6, 1, tzinfo=UTC)
    clocked = schedules.get("clocked").definition
    assert (clocked.kind, clocked.max_runs) == ("clocked", 1)
    assert datetime.fromisoformat(clocked.spec) == datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert "celery.backend_cleanup" not in {each.name for each in schedules}
    assert imported(app, "django-celery-beat", url).count("left alone") == 4


def test_the_file_of_celerys_own_beat(app: Celery, schedules: Schedules, tmp_path: Path):
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.beat_schedule = {
        "two": {"task": "tasks.do", "schedule": 2.0, "args": (1, 2)},
        "cron": {"task": "tasks.do", "schedule": crontab(minute=5), "options": {"queue": "slow"}},
        "relative": {"task": "tasks.do", "schedule": timedelta(hours=1), "relative": True},
    }
    path = str(tmp_path / "celerybeat-schedule")
    PersistentScheduler(other, schedule_filename=path).close()
    with shelve.open(path) as file:
        assert "entries" in file

    imported(app, "shelve", path)
    stored = {name: schedules.get(name).definition for name in ("two", "cron", "relative")}
    assert (stored["two"].spec, stored["two"].args) == ("2", [1, 2])
    assert (stored["cron"].spec, stored["cron"].options) == ("5 * * * *", {"queue": "slow"})
    assert (stored["relative"].kind, stored["relative"].spec) == ("relative", "3600")


@pytest.fixture
def redbeat() -> Iterator[Any]:
    """An app whose entries redbeat keeps under a prefix of their own."""
    pytest.importorskip("redbeat")
    redis = pytest.importorskip("redis")
    client = redis.Redis.from_url(REDIS)
    try:
        client.ping()
    except redis.ConnectionError:
        pytest.skip("no Redis on 127.0.0.1:6379")
    prefix = "sqlqueue-test-redbeat:"
    other = Celery("other", broker=REDIS, set_as_current=False)
    other.conf.update(redbeat_redis_url=REDIS, redbeat_key_prefix=prefix)
    yield other
    for key in client.scan_iter(match=f"{prefix}*"):
        client.delete(key)


def test_the_entries_of_redbeat(app: Celery, schedules: Schedules, redbeat: Any):
    from redbeat import RedBeatSchedulerEntry
    from redbeat.schedules import rrule

    def save(name: str, when: Any, **fields: Any) -> None:
        RedBeatSchedulerEntry(name, "tasks.do", when, app=redbeat, **fields).save()

    save("every", schedule(90), args=[1], kwargs={"x": 2})
    save("cron", crontab(minute="*/10", hour="8"), options={"queue": "slow"}, enabled=False)
    save("ruled", rrule("DAILY", dtstart=datetime(2026, 1, 1, tzinfo=UTC)))
    app.conf.redbeat_key_prefix = redbeat.conf.redbeat_key_prefix

    said = imported(app, "redbeat", REDIS)
    assert "refused ruled" in said
    every, cron = schedules.get("every").definition, schedules.get("cron").definition
    assert (every.spec, every.args, every.kwargs) == ("90", [1], {"x": 2})
    assert (cron.spec, cron.enabled) == ("0,10,20,30,40,50 8 * * *", False)
    assert cron.options["queue"] == "slow"
    assert {each.name for each in schedules} == {"every", "cron"}


@pytest.mark.parametrize(
    ("kind", "source", "says"),
    [
        ("shelve", "no-such-file", "no-such-file cannot be read"),
        ("redbeat", "redis://127.0.0.1:1/0", "redbeat's Redis cannot be read"),
        ("redbeat", "nonsense", "redbeat's Redis cannot be read"),
        ("django-celery-beat", "sqlite:///", "no such table"),
        ("django-celery-beat", "oracle://x", "is not a database URL"),
    ],
)
def test_what_cannot_be_read_is_one_line(app: Celery, kind: str, source: str, says: str):
    done = CliRunner().invoke(workflow, ["schedule", "import", kind, source], obj=SimpleNamespace(app=app))

    assert done.exit_code == 1
    assert says in done.output
    assert "Traceback" not in done.output
