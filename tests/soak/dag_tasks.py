"""The workers of random workflows: any task of a plan does what the plan says."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from celery import Celery

from celery_workflow import Workflows, current
from celery_workflow.building.builder import DEFINITION
from celery_workflow.engine.codec import to_json
from celery_workflow.engine.definition import Definition, Map, Sleep, Step, Task
from celery_workflow.engine.policies import RetryPolicy

from ..workflow.graphs import Plan, child_of, result_of

__all__ = ["MOST_STEPS", "Planned", "quick"]

#: How many steps a random workflow may have.
MOST_STEPS = 50
#: How many seconds a second of a plan takes.
PACE = 0.0005


class Planned(Exception):
    """A failure that the plan wants."""


def quick(plan: Plan) -> Definition:
    """The plan's definition for real workers: its pauses are short, and its tasks know how often to fail."""
    steps = tuple(_quick(step, plan.failures.get(step.name, 0)) for step in plan.definition.steps)
    return replace(plan.definition, steps=steps)


def _quick(step: Step, failures: int) -> Step:
    action: Any = step.action
    if isinstance(action, Task | Map):
        expands = isinstance(action, Task) and action.expands
        kwargs = {"failures": failures, **({"expands": True} if expands else {})}
        action = replace(action, call=replace(action.call, kwargs=kwargs))
    elif isinstance(action, Sleep):
        action = replace(action, seconds=action.seconds * PACE)
    retry = RetryPolicy(max_attempts=step.retry.max_attempts, delay=0.02, jitter=0.5)
    return replace(step, action=action, retry=retry)


def act(*args: Any, failures: int = 0, expands: bool = False) -> Any:
    step = current()
    fails = step.attempt <= failures and (step.index is None or step.index % 3 == 0)
    if fails:
        raise Planned(step.step)
    if expands:
        return {DEFINITION: to_json(quick(Plan(child_of(step.step))))}
    return result_of(step.step, args)


if "TEST_BROKER_URL" in os.environ:
    app = Celery("dags", broker=os.environ["TEST_BROKER_URL"], backend=os.environ["TEST_BROKER_URL"])
    app.conf.update(broker_connection_retry_on_startup=True, **json.loads(os.environ["TEST_CONF"]))
    Workflows(app)
    names = [f"s{number}{suffix}" for number in range(MOST_STEPS) for suffix in ("", "_one", "_two")]
    for name in (*names, *(f"undo_s{number}" for number in range(MOST_STEPS)), "told", "glad"):
        app.task(act, name=f"tasks.{name}", shared=False)
