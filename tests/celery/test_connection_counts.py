"""How many connections each kind of process has, whatever it does, and that none sits in a transaction."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from celery import group

from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for

from ..databases import migrate
from ..servers import PostgresServer, started_server
from .flowers import Flower
from .workers import Site, eventually

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
TASKS = 500

#: A web process: threads that send and wait, again and again, until it is told to end.
WEB = """
import sys
from concurrent.futures import ThreadPoolExecutor
from tests.celery.tasks import add

def view(number):
    return add.delay(number, 1).get(timeout=60) == number + 1

with ThreadPoolExecutor(8) as threads:
    for line in sys.stdin:
        print(all(threads.map(view, range(int(line)))), flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with started_server() as server:
        server.start()
        yield server


@pytest.fixture(scope="module")
def site(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    options = DatabaseOptions(normalise(server.url))
    migrate(options)
    tick = {"task": "tests.celery.tasks.echo", "schedule": 0.2, "args": ["tick"]}
    site = Site(options, tmp_path_factory.mktemp("site"), beat_schedule={"tick": tick})
    yield site
    site.close()
    process_for(options).close()


@contextmanager
def watched(server: PostgresServer) -> Iterator[list[float]]:
    """For how many seconds sessions sat idle in a transaction, looked at ten times a second."""
    stop = threading.Event()
    sat: list[float] = []

    def watch() -> None:
        while not stop.wait(0.1):
            rows = server.ask(
                "SELECT extract(epoch FROM clock_timestamp() - state_change)::float FROM pg_stat_activity"
                " WHERE state LIKE 'idle in transaction%'"
            )
            sat.extend(float(str(seconds)) for (seconds,) in rows)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sat
    finally:
        stop.set()
        thread.join()


def connections(server: PostgresServer, process: psutil.Process) -> int:
    return sum(bool(each.raddr) and each.raddr.port == server.port for each in process.net_connections("tcp"))


def documented(kind: str) -> int:
    """What the page says such a process has at most."""
    [(most,)] = re.findall(rf"^\| {re.escape(kind)}[^|]*\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    return int(most)


def test_each_process_has_a_documented_number_of_connections_however_much_it_does(site: Site, server: PostgresServer):
    worker = site.worker("-c8")
    beat = site.beat()
    flower = Flower(site, "-A", "tests.celery.tasks").wait_ready()
    web = subprocess.Popen(
        [sys.executable, "-c", WEB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=site.environment
    )
    parent = psutil.Process(worker.process.pid)
    processes = {
        "worker": [parent],
        "each prefork child": parent.children(),
        "beat": [psutil.Process(beat.process.pid)],
        "Flower": [psutil.Process(flower.process.pid)],
        "web process": [psutil.Process(web.pid)],
    }
    assert len(parent.children()) == 8

    def use(times: int) -> dict[str, list[int]]:
        web.stdin.write(f"{times}\n")
        web.stdin.flush()
        assert web.stdout.readline() == "True\n"
        flower.get("/api/queues/length")
        return {kind: [connections(server, each) for each in those] for kind, those in processes.items()}

    try:
        with watched(server) as sat:
            counted = use(TASKS)
    finally:
        web.kill()
        web.wait()
        flower.kill()
    for kind, counts in counted.items():
        assert 0 < max(counts) <= documented(kind), (kind, counts)
    assert max(sat, default=0.0) < 2


def test_no_session_is_in_a_transaction_when_work_has_stopped(site: Site, server: PostgresServer):
    """Nor longer than a moment while tasks of all kinds run."""
    if not site.workers:
        site.worker("-c8")
    with watched(server) as sat:
        results = group(site.task("add", number, 1) for number in range(100)).apply_async()
        site.send("flaky", "again", 1)
        site.send("record", "later", countdown=1)
        assert results.get(timeout=60) == list(range(1, 101))
        eventually(lambda: site.marks("later") and len(site.marks("try again")) == 2)
    time.sleep(0.5)

    assert max(sat, default=0.0) < 2
    assert (
        server.ask(
            "SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND state_change < now() - interval '0.4 s'"
        )
        == []
    )
