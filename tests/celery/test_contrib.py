"""Celery's own helpers for tests, as projects use them that test their tasks with a worker in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.contrib.testing import worker
from celery.contrib.testing.app import setup_default_app
from celery.contrib.testing.manager import Manager

from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..databases import wipe

#: Each with workers for minutes: what differs on MariaDB is tested elsewhere.
DATABASES = ("sqlite", "postgresql")


@pytest.fixture
def app(database_options: DatabaseOptions) -> Iterator[Celery]:
    """An app with a few tasks, as a project's tests would have one."""
    url = f"sqlqueue+{database_options.url}"
    app = Celery("contrib", broker=url, backend=url, set_as_current=False)
    app.conf.broker_transport_options = {"schema": database_options.schema}
    app.conf.worker_hijack_root_logger = False

    @app.task(name="add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    with setup_default_app(app):
        yield app
    process = process_for(database_options)
    wipe(process.database)
    process.close()


@pytest.fixture(params=["solo", "threads"])
def started(request: pytest.FixtureRequest, app: Celery) -> Iterator[Any]:
    """A worker in a thread of this process, which sets up the logging of all of it."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    with worker.start_worker(app, pool=request.param, perform_ping_check=False, shutdown_timeout=30) as started:
        yield started
    assert not any(thread.name == "workflow-advancer" for thread in threading.enumerate())
    root.setLevel(level)
    root.handlers[:] = handlers


def test_tasks_run_in_an_embedded_worker(app: Celery, started: Any):
    """Single ones, groups and chords."""
    add, total = app.tasks["add"], app.tasks["total"]

    assert add.delay(1, 2).get(timeout=30) == 3
    assert group(add.s(i, 1) for i in range(5)).apply_async().get(timeout=30) == [1, 2, 3, 4, 5]
    assert chord([add.s(1, 2), add.s(3, 4)], total.s()).apply_async().get(timeout=30) == 10


def test_the_manager_sees_what_the_worker_does(app: Celery, started: Any):
    """It asks by remote control what runs, and waits until nothing does."""
    manager = Manager(app)
    result = group(app.tasks["add"].s(i, 1) for i in range(3)).apply_async()

    manager.assert_result_tasks_in_progress_or_completed(result.results)
    manager.join(result, timeout=30)
    manager.wait_until_idle()
    assert result.get(timeout=30) == [1, 2, 3]
