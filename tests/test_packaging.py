"""What users get by installing the package, and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points, metadata
from pathlib import Path

import pytest
from celery import Celery
from kombu import Connection

from kombu_sqlqueue.backend import SQLBackend

from .celery.workers import eventually

ROOT = Path(__file__).parents[1]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlqueue+sqlite:///{tmp_path / 'queue.db'}"


@pytest.fixture
def run(tmp_path: Path):
    """Runs a command where nothing of the project is importable but by being installed."""

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment(),
            check=False,
            text=True,
            capture_output=True,
            timeout=60,
        )

    return run


def test_metadata_says_what_it_is():
    told = metadata("kombu-sqlqueue")

    assert told["License-Expression"] == "BSD-3-Clause"
    assert {"postgresql", "mysql", "dev"} <= set(told.get_all("Provides-Extra"))


@pytest.mark.parametrize(
    "group", ["kombu.serializers", "celery.result_backends", "celery.commands", "celery.beat_schedulers"]
)
def test_each_entry_point_loads(group: str):
    (found,) = entry_points(group=group, name="sqlqueue")

    assert found.load() is not None


def test_what_kombu_loads_is_a_harmless_json_serializer():
    (found,) = entry_points(group="kombu.serializers", name="sqlqueue")
    encode, decode, content_type, encoding = found.load()

    assert decode(encode({"a": [1, None]})) == {"a": [1, None]}
    assert content_type != "application/json", "it would replace Kombu's own"
    assert encoding == "utf-8"


def test_the_wheel_holds_the_migrations_and_the_types(tmp_path: Path):
    source = tmp_path / "source"
    for package in ("kombu_sqlqueue", "celery_workflow"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True)

    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"celery_workflow/py.typed", "celery_workflow/engine/machine.py"} <= set(names)
    assert {"kombu_sqlqueue/py.typed", "kombu_sqlqueue/sql/migrations/env.py"} <= set(names)
    assert "kombu_sqlqueue/sql/migrations/versions/0001_first.py" in names
    assert {"celery_workflow/py.typed", "celery_workflow/sql/migrations/env.py"} <= set(names)
    assert "celery_workflow/sql/migrations/versions/0001_schedules.py" in names
    assert not [name for name in names if name.startswith(("tests", "examples", "docs"))]


def test_a_celery_app_needs_only_the_url(run, url: str):
    done = run("-c", f"from celery import Celery; app = Celery(broker={url!r}); app.send_task('x'); print(app.backend)")

    assert done.returncode == 0, done.stderr


def test_the_result_backend_needs_only_the_url(run, url: str):
    done = run("-c", f"from celery import Celery; print(Celery(backend={url!r}).AsyncResult('nobody').state)")

    assert done.stdout.strip() == "PENDING", done.stderr


@pytest.mark.parametrize("scheme", ["sqlqueue+postgresql", "sqlqueue+postgres", "sqlqueue-postgresql", "sqlqueue-postgres"])
def test_each_form_of_url_serves_as_broker_and_as_result_backend(scheme: str):
    """The plus-less one is there for lists of hosts, which Kombu takes apart."""
    url = f"{scheme}://user@nowhere.invalid/database"
    with Celery(set_as_current=False, broker=url, backend=url) as app:
        assert app.connection_for_write().transport.driver_type == "sqlqueue"
        assert isinstance(app.backend, SQLBackend)


def test_a_list_of_hosts_can_be_switched_through():
    hosts = [f"sqlqueue+postgresql://user@{host}.invalid/database" for host in ("one", "two")]
    with Connection(hosts) as connection:
        connection.switch(next(connection.cycle))
        assert connection.transport.options.database.url.startswith("postgresql+psycopg://user@")


def test_kombu_with_a_queue_and_a_producer_needs_only_the_url(run, url: str):
    code = f"""
from kombu import Connection, Producer, Queue
with Connection({url!r}) as connection:
    queue = Queue("letters", routing_key="letters", channel=connection.channel())
    Producer(connection).publish("hello", routing_key="letters", declare=[queue])
    print(queue.get().payload)
"""
    done = run("-c", code)

    assert done.stdout.strip() == "hello", done.stderr


def test_purge_with_a_url_alone(run, url: str):
    run("-c", f"from celery import Celery; app = Celery(broker={url!r}); [app.send_task('x') for _ in range(3)]")
    done = run("-m", "celery", "--broker", url, "purge", "-f")

    assert done.returncode == 0, done.stderr
    assert "3 messages" in done.stdout


def test_worker_and_inspect_with_a_url_alone(run, url: str, tmp_path: Path):
    """No app, no import, no configuration: a worker starts, answers and stops."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "celery", "--broker", url, "worker", "-P", "solo", "-l", "INFO"]
    with log.open("w") as output:
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=output, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: " ready." in log.read_text() or worker.poll() is not None, 30)
        done = run("-m", "celery", "--broker", url, "inspect", "ping")
        assert "pong" in done.stdout, log.read_text() + done.stderr
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"C_FORCE_ROOT": "1"}
