"""What stands in a deployment's way from outside: locks, slow disks, wrong clocks. Late, perhaps; but nothing lost, nothing twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability

from ..proxy import Proxy
from .cut_lines import by_way_of
from .workers import Site, Worker, eventually

LEASE = 3.0

#: How an administrator, or another program, keeps all others from writing, and how that ends.
LOCKS = {
    "postgresql": ("LOCK TABLE {0}message, {0}lessee", "SELECT 1"),
    "mysql": ("LOCK TABLES {0}message WRITE, {0}lessee WRITE", "UNLOCK TABLES"),
    "sqlite": ("UPDATE {0}lessee SET name = name", "SELECT 1"),
}


@contextmanager
def locked(site: Site) -> Iterator[None]:
    """Nobody else can write meanwhile."""
    database = Database(site.database)
    schema = f"{site.database.schema}." if site.database.schema else ""
    lock, unlock = LOCKS[database.dialect.name]
    with database.engine.connect() as connection:
        with connection.begin():
            connection.execute(text(lock.format(f"{schema}sqlqueue_")))
            yield
        connection.execute(text(unlock))
    database.dispose()


def test_tables_that_are_locked_for_longer_than_a_lease_cost_nobody_his_task(site: Site):
    """Nobody can renew meanwhile. Afterwards all can, and nobody is taken for dead because another was a moment earlier."""
    for _ in range(2):
        site.worker("-c2", "-Pthreads", "--prefetch-multiplier=1")
    jobs = [f"job {number}" for number in range(4)]
    for job in jobs:
        site.send("sleep_late", job, LEASE + 6)
    eventually(lambda: len(site.marks()) == len(jobs))
    with locked(site):
        time.sleep(LEASE + 2)
    site.send("record", "after")

    eventually(lambda: site.marks("after"))
    eventually(lambda: site.waiting() == 0)
    assert sorted(mark for mark in site.marks() if mark.startswith("begin")) == [f"begin {job}" for job in jobs]


@pytest.fixture
def remote(site: Site) -> Site:
    """A deployment with a server, that has a line and a clock of its own."""
    if Capability.LISTEN_NOTIFY not in process_for(site.database).database.dialect.capabilities:
        pytest.skip("a file has no line and no clock; on MariaDB each is the same, and takes a minute")
    return site


def test_a_database_that_is_slow_to_answer_slows_down_and_nothing_else(remote: Site, tmp_path: Path):
    """Each answer takes 0.1 s longer: no lease ends, nothing runs twice."""
    site = remote
    url = make_url(site.database.url)
    with Proxy((url.host or "127.0.0.1", url.port or 5432)) as proxy:
        behind = Site(by_way_of(proxy, site.database, sslmode="disable"), tmp_path, options={"lease_for": 2 * LEASE})
        try:
            behind.worker("-c2")
            behind.worker("-Pthreads", "-c2")
            proxy.delay = 0.1
            site.send("sleep_late", "long", 2 * LEASE + 2)
            for number in range(12):
                site.send("record", f"{number}")
            eventually(lambda: site.waiting() == 0)
        finally:
            proxy.delay = 0
            behind.close()
            process_for(behind.database).close()
    assert sorted(site.marks()) == sorted(["begin long", "end long", *map(str, range(12))])


# -- clocks that are wrong ----------------------------------------------------------------

FAKETIME = next(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"), None)
needs_faketime = pytest.mark.skipif(FAKETIME is None, reason="the package faketime is not installed")


@pytest.fixture
def with_clock(site: Site) -> Callable[[str], Worker]:
    """Starts a worker whose clock is wrong by so much, and that serves the queue of that name."""

    def start(wrong_by: str) -> Worker:
        clean = dict(site.environment)
        site.environment |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": wrong_by}
        worker = site.worker("-c2", "-Pthreads", "-Q", wrong_by)
        site.environment.clear()
        site.environment.update(clean)
        return worker

    return start


@needs_faketime
def test_workers_with_wrong_clocks_lose_no_lease_and_begin_in_time(remote: Site, with_clock: Callable[[str], Worker]):
    """One is an hour fast, one an hour slow. What is due is judged by the database, whose clock both ask."""
    clocks = ("+1h", "-1h")
    site = remote
    for clock in clocks:
        with_clock(clock)
    sent_at = time.monotonic()
    for clock in clocks:
        site.send("sleep_late", f"long {clock}", LEASE + 2, queue=clock)
        site.send("record", f"later {clock}", countdown=3, queue=clock)
    later = [f"later {clock}" for clock in clocks]
    while time.monotonic() < sent_at + 2.5:
        assert not set(later) & set(site.marks())
        time.sleep(0.1)

    eventually(lambda: all(site.waiting(clock) == 0 for clock in clocks), 30)
    assert sorted(site.marks()) == sorted(
        [*later, *(f"{what} long {clock}" for what in ("begin", "end") for clock in clocks)]
    )
