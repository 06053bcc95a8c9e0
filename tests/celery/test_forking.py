"""A server that forks after it has used the app, and children that come and go."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for

from ..databases import migrate
from ..servers import certificates, started_server
from .workers import Site, eventually

#: Workers whose children live for one task take their time; what is particular to a database is tested elsewhere.
DATABASES = ("postgresql",)

#: The parent sends and waits, forks three that do so eight times each, and does so again.
PREFORK_SERVER = """
import os
from tests.celery.tasks import echo

def serve(name, times=8):
    values = [f"{name} {number}" for number in range(times)]
    results = [echo.delay(value) for value in values]
    return [result.get(timeout=60) for result in results] == values

assert serve("parent")
children = []
for number in range(3):
    child = os.fork()
    if not child:
        try:
            os._exit(0 if serve(f"child {number}") else 1)
        finally:
            os._exit(2)
    children.append(child)
assert serve("parent meanwhile")
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0, 0, 0], codes
assert serve("parent afterwards")
"""


@pytest.fixture
def with_tls(tmp_path: Path) -> Iterator[Site]:
    """A deployment on a server that speaks nothing but TLS to us."""
    made = certificates(tmp_path)
    with started_server(tls=True, ssl="on", ssl_cert_file="server.pem", ssl_key_file="server.key") as server:
        server.install(made)
        server.start()
        options = DatabaseOptions(normalise(f"{server.url}?sslmode=require"))
        migrate(options)
        site = Site(options, tmp_path)
        yield site
        site.close()
        process_for(options).close()


def serves(site: Site) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREFORK_SERVER],
        check=False,
        env=site.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_children_forked_after_the_app_was_used_get_their_own_results(site: Site):
    """As with gunicorn and preload_app: parent and children use it at the same time."""
    site.worker("-c2")
    serves(site)


def test_the_same_over_tls(with_tls: Site):
    """Two who spoke on one line would garble it at once."""
    with_tls.worker("-c2")
    serves(with_tls)


@pytest.mark.parametrize("seconds", [0, pytest.param(3600, marks=pytest.mark.soak)])
def test_children_that_live_for_one_task_leave_nothing_behind(make_site: Callable[..., Site], seconds: int):
    """Each task has a process of its own: every result comes, no descriptor and no child is left over."""
    site = make_site(worker_max_tasks_per_child=1)
    worker = site.worker("-c2")
    until = time.monotonic() + seconds
    done = descriptors = 0
    while time.monotonic() < until or done < 20:
        results = [site.send("add", number, 1) for number in range(10)]
        assert [result.get(timeout=60) for result in results] == list(range(1, 11))
        done += 10
        descriptors = descriptors or open_files(worker.process.pid)
    eventually(lambda: site.waiting() == 0)

    assert open_files(worker.process.pid) <= descriptors + 20
    assert worker.process.poll() is None


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
