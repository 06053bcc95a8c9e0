"""Fixtures of the workflow tests."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_workflow.testing import WorkflowHarness

from . import tasks


@pytest.fixture
def harness() -> WorkflowHarness:
    """A world of its own, in which no task has done anything yet."""
    tasks.told.clear()
    tasks.failing.clear()
    return WorkflowHarness(tasks.app)


@pytest.fixture
def workflow_app() -> Celery:
    return tasks.app
