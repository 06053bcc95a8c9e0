"""The app that a worker runs and `celery workflow` looks at; its settings come from the environment."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

from celery_workflow import workflow
from celery_workflow.building.builder import Builder

app = Celery("watched", broker=os.environ["TEST_BROKER_URL"], backend=os.environ["TEST_BROKER_URL"])
app.conf.update(json.loads(os.environ["TEST_CONF"]))


@app.task(name="double")
def double(n: int) -> int:
    return 2 * n


@workflow(app, name="watched.doubled")
def doubled(w: Builder, n: int) -> Any:
    first = w.step(double.s(n), name="first")
    go = w.wait_for("go", timeout=None, after=first)
    return w.map(double, [first, go], name="again")
