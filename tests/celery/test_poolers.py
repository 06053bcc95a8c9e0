"""A real PgBouncer in between, in transaction mode: every statement may meet another session of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord, group
from sqlalchemy.engine import make_url

from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for

from ..databases import migrate
from ..servers import PgBouncer, PostgresServer, started_pooler, started_server
from .workers import Site, eventually

TASKS = 200
#: So large that what is announced cannot be taken for what was found by polling.
INTERVAL = 20.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with started_server() as server:
        server.start()
        migrate(DatabaseOptions(normalise(server.url)))
        yield server


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[PgBouncer]:
    with started_pooler("127.0.0.1", server.port, pool_size=2) as pooler:
        yield pooler


@pytest.fixture
def behind(pooler: PgBouncer, server: PostgresServer, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes a deployment that knows the pooler's address only."""
    sites: list[Site] = []

    def make(**options: Any) -> Site:
        url = make_url(normalise(server.url)).set(port=pooler.port).render_as_string(hide_password=False)
        sites.append(Site(DatabaseOptions(url), tmp_path, options=options))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
        process_for(site.database).close()


def test_two_sessions_serve_two_workers(behind: Callable[..., Site], server: PostgresServer):
    """Results, a chord, a retry, remote control: nothing prepared in one session is expected in another, none sits in a transaction."""
    site = behind(listen=False, polling_interval=0.2)
    workers = [site.worker("-c2") for _ in range(2)]
    results = group(site.task("add", number, 1) for number in range(TASKS)).apply_async()
    sat = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            sat.extend(
                server.ask(
                    "SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in%' AND state_change < now() - interval '1 s'"
                )
            )

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        assert results.get(timeout=60) == [number + 1 for number in range(TASKS)]
        assert chord([site.task("add", n, 1) for n in range(9)], site.task("total")).apply_async().get(timeout=60) == 45
        assert site.send("flaky", "again", 2).get(timeout=60) == 2
        assert len(site.app.control.ping(timeout=10, limit=2)) == 2
    finally:
        stop.set()
        thread.join()

    eventually(lambda: site.waiting() == 0)
    assert sat == []
    sessions = server.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sqlqueue'")
    assert sessions[0][0] <= 2
    for worker in workers:
        assert "prepared statement" not in worker.text
        assert "Traceback" not in worker.text


def test_who_could_not_hear_anything_says_so_once_and_polls(behind: Callable[..., Site]):
    """LISTEN is accepted there and leads nowhere: tasks are found each `polling_interval`, as with listen=False."""
    site = behind(polling_interval=1.0)
    worker = site.worker()
    for number in range(3):
        assert site.send("echo", number).get(timeout=5) == number

    assert worker.text.count("a pooler in between passes no notifications on") == 1
    assert "not being notified" not in worker.text


def test_who_listens_at_the_server_itself_is_told_of_each_task(behind: Callable[..., Site], server: PostgresServer):
    site = behind(listen_at=f"127.0.0.1:{server.port}", polling_interval=INTERVAL)
    worker = site.worker()
    for number in range(3):
        assert site.send("echo", number).get(timeout=INTERVAL / 4) == number

    assert "pooler" not in worker.text


def test_a_pooler_in_session_mode_passes_notifications_on(server: PostgresServer, tmp_path: Path):
    with started_pooler("127.0.0.1", server.port, pool_size=50, mode="session") as pooler:
        url = make_url(normalise(server.url)).set(port=pooler.port).render_as_string(hide_password=False)
        site = Site(DatabaseOptions(url), tmp_path, options={"polling_interval": INTERVAL})
        worker = site.worker()
        try:
            for number in range(3):
                assert site.send("echo", number).get(timeout=INTERVAL / 4) == number
            assert "pooler" not in worker.text
        finally:
            site.close()
            process_for(site.database).close()
