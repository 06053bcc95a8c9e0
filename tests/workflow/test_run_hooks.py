"""Apps that take part in workflows: what is different, and what is as it was."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.backends.redis import RedisBackend

from celery_workflow import Workflows, durable
from celery_workflow.runs.hooks import Participating
from celery_workflow.runs.identity import HEADER
from kombu_sqlqueue.backend import SQLBackend


class Picky(SQLBackend):
    """A result backend of the app's own, in which somebody has made a mistake."""

    def _store_result(self, task_id: Any, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        if state == states.SUCCESS:
            raise LookupError("a mistake")
        return super()._store_result(task_id, result, state, *args, **kwargs)


@pytest.mark.parametrize(("url", "kind"), [("sqlqueue+sqlite:///x.db", SQLBackend), ("redis://nowhere", RedisBackend)])
def test_results_can_be_pickled(url: str, kind: type):
    app = Celery("pickled", broker="memory://", backend=url, set_as_current=False)
    made_before = app.backend
    Workflows(app)
    result = app.AsyncResult("id")

    assert isinstance(result.backend, Participating)
    assert made_before is result.backend
    app.set_current()
    copy = pickle.loads(pickle.dumps(result))
    assert (copy.id, isinstance(copy.backend, kind)) == ("id", True)


def test_an_app_without_results_takes_part():
    app = Celery("silent", broker="memory://", set_as_current=False)
    Workflows(app)
    app.backend.mark_as_done("id", 1, request=None)

    assert isinstance(app.backend, Participating)


def test_taking_part_twice_changes_nothing():
    app = Celery("twice", broker="memory://", set_as_current=False)
    Workflows(app)
    send, steps = app.send_task, set(app.steps["worker"])
    Workflows(app)

    assert (app.send_task, set(app.steps["worker"])) == (send, steps)


def test_an_outcome_that_nobody_can_write_is_a_failure(app: Celery):
    """Otherwise each worker would run the step again, for nothing."""
    app.conf.result_backend = f"{__name__}:Picky+{app.conf.result_backend.removeprefix('sqlqueue+')}"
    app._local.__dict__.pop("backend", None)
    app._backend_cache = None
    run = durable(app.signature("noted"), app=app).options(id="r").start()
    header = {"run": "r", "workflow": "canvas", "step": "noted", "index": None, "epoch": 1, "attempt": 1, "max_attempts": 1}
    step = run.steps()["noted"]
    request = Context(id=step.task_id, task="noted", ignore_result=False, **{HEADER: header | {"expands": False}})
    app.backend.mark_as_done(step.task_id, 1, request=request)

    assert run.status == "failed"
    assert [each["error"].message for each in run.errors] == ["a mistake"]
