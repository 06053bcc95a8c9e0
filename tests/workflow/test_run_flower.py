"""Flower beside a worker that runs steps: tasks like others, told from them by the run's id as their root."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_workflow import Run

from ..celery.flowers import Flower
from ..celery.workers import eventually
from .run_sites import RunSite

DATABASES = ["sqlite", "postgresql"]


@pytest.fixture
def flower(run_site: RunSite) -> Iterator[Flower]:
    """With a worker, which sends events once Flower has asked for them."""
    worker = run_site.worker("-c2")
    flower = Flower(run_site, "-A", "tests.workflow.run_app")
    try:
        flower.wait_ready()
        eventually(lambda: "enabled by remote" in worker.text)
        yield flower
    finally:
        flower.kill()


def test_steps_are_seen_under_their_own_names_and_as_they_end(run_site: RunSite, flower: Flower):
    site, tasks = run_site, run_site.tasks
    good = site.run(tasks.add.s(1, 2), tasks.flaky.s("tried", 1), retry={"max_attempts": 2, "delay": 0.1})
    bad, again = site.run(tasks.fail.s("bad")), site.run(tasks.retried_later.s("again"))

    def told(run: Run) -> dict[str, Any]:
        """The states of the run's tasks in Flower's list."""
        tasks = flower.get("/api/tasks", limit=1000).values()
        return {task["name"]: task["state"] for task in tasks if task["root_id"] == run.id}

    # The attempt that failed before counts for less than the one that did not.
    eventually(lambda: told(good) == {"add": "SUCCESS", "flaky": "SUCCESS"})
    eventually(lambda: told(bad) == {"fail": "FAILURE"})
    eventually(lambda: told(again) == {"retried_later": "RETRY"})

    task_id = bad.steps()["fail"].task_id
    shown = flower.get(f"/api/task/info/{task_id}")
    assert (shown["name"], shown["root_id"], shown["exception"]) == ("fail", bad.id, "ValueError('bad')")
    page = flower.get(f"/task/{task_id}")
    assert f"/task/{bad.id}" in page
    assert "ValueError" in page
