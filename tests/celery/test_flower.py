"""Flower beside our broker: what its pages and its interface for programs tell."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .workers import Site, eventually

pytest.importorskip("flower")

#: What starts Flower: with the app, or with nothing but the URL.
STARTS = {"with the app": ["-A", "tests.celery.tasks"], "with a URL": ["--broker", "{url}"]}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def start_flower() -> Iterator[Callable[..., Callable[[str], str | None]]]:
    """Starts Flower; the answer reads one of its pages, None while it does not answer."""
    processes = []

    def start(site: Site, *app: str) -> Callable[[str], str | None]:
        port = free_port()
        command = [sys.executable, "-m", "celery", *app, "flower", "--address=127.0.0.1", f"--port={port}"]
        log = (site.directory / "flower.log").open("ab")
        environment = {**site.environment, "FLOWER_UNAUTHENTICATED_API": "true"}
        processes.append(subprocess.Popen(command, env=environment, cwd=site.directory, stdout=log, stderr=log))

        def read(path: str) -> str | None:
            assert processes[-1].poll() is None, (site.directory / "flower.log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                    return str(answer.read().decode())
            except (urllib.error.URLError, OSError):
                return None

        return read

    yield start
    for process in processes:
        process.kill()
        process.wait()


def as_json(text: str | None) -> Any:
    return json.loads(text) if text else {}


@pytest.mark.parametrize("start", list(STARTS))
def test_flower_shows_workers_tasks_and_queues(site: Site, start_flower, start: str):
    """The worker with its queue, the task with its state, and how many messages wait."""
    if start == "with a URL" and site.database.schema:
        pytest.skip("a URL alone names no schema")
    site.worker("-E")
    read = start_flower(site, *(part.format(url=f"sqlqueue+{site.database.url}") for part in STARTS[start]))
    eventually(lambda: "w1@test" in as_json(read("/api/workers?refresh=1")))
    result = site.send("add", 2, 3)
    assert result.get(timeout=60) == 5

    eventually(lambda: as_json(read(f"/api/task/info/{result.id}")).get("state") == "SUCCESS")
    assert [queue["name"] for queue in as_json(read("/api/workers?refresh=1"))["w1@test"]["active_queues"]] == ["celery"]
    site.workers[0].stop()
    for number in range(7):
        site.send("record", str(number), queue="celery")
    eventually(lambda: queue_lengths(read) == {"celery": 7})
    assert "celery" in eventually(lambda: read("/broker"))


def queue_lengths(read: Callable[[str], str | None]) -> dict[str, int]:
    """What programs are told, which is what the page shows."""
    queues = as_json(read("/api/queues/length")).get("active_queues", [])
    return {queue["name"]: queue["messages"] for queue in queues}
