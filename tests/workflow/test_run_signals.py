"""What receivers of Celery's signals are told of runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from sqlalchemy import create_engine

from celery_workflow import Workflows, durable, signals
from celery_workflow.runs.hooks import install
from celery_workflow.runs.identity import HEADER
from kombu_sqlqueue import in_transaction

SIGNALS = [getattr(signals, name) for name in signals.__all__ if not name.startswith("schedule_")]


@pytest.fixture
def told() -> Iterator[list[tuple[str, str, str | None]]]:
    found: list[tuple[str, str, str | None]] = []

    def hear(signal: Any, run: str, entry: Any, **_: Any) -> None:
        found.append((signal.name, run, entry.name))

    for signal in SIGNALS:
        signal.connect(hear)
    yield found
    for signal in SIGNALS:
        signal.disconnect(hear)


@pytest.fixture
def double(app: Celery) -> Any:
    @app.task(name="double", shared=False)
    def double(number: int) -> int:
        return 2 * number

    return double


def test_a_run_is_told_of_from_its_start_to_its_end(app: Celery, double: Any, told: list[Any]):
    flow = durable(double.s(1) | double.s(), app=app)
    run = flow.options(id="r").start()
    for result in 2, 4:
        step = next(info for info in run.steps().values() if info.status == "sent")
        app.backend.mark_as_done(step.task_id, result, request=_request(step))

    assert run.result(timeout=0) == 4
    assert told == [
        ("workflow_started", "r", None),
        ("step_started", "r", "double"),
        ("step_succeeded", "r", "double"),
        ("step_started", "r", "double-2"),
        ("step_succeeded", "r", "double-2"),
        ("workflow_finished", "r", None),
    ]


def test_nobody_is_told_of_what_the_caller_may_roll_back(app: Celery, double: Any, told: list[Any]):
    Workflows(app).runs()  # Connects, so that the transaction below is not the first use.
    engine = create_engine(install(app).runtime.home.options.url)
    with engine.connect() as connection, connection.begin() as transaction, in_transaction(connection):
        durable(double.s(1), app=app).start()
        transaction.rollback()
    engine.dispose()

    assert told == []
    assert Workflows(app).runs() == []


def _request(step: Any) -> Context:
    """The request of a step's first attempt, as its message has it."""
    header = {
        "run": "r",
        "workflow": "canvas",
        "step": step.name,
        "index": None,
        "epoch": 1,
        "attempt": 1,
        "max_attempts": 1,
        "expands": False,
    }
    return Context(id=step.task_id, task="double", ignore_result=False, **{HEADER: header})
