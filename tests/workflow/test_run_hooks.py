"""Apps that take part in workflows: what is different, and what is as it was."""

from __future__ import annotations

import pickle

import pytest
from celery import Celery
from celery.backends.redis import RedisBackend

from celery_workflow import Workflows
from celery_workflow.runs.hooks import Participating
from kombu_sqlqueue.backend import SQLBackend


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
