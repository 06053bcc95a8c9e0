"""Fixtures for workflows: ``pytest_plugins = ["celery_workflow.pytest_plugin"]`` in a conftest.

The conftest has a fixture `workflow_app` that returns the Celery app; tests ask for `workflow_harness`.
"""

from __future__ import annotations

import pytest
from celery import Celery

from .testing import WorkflowHarness

__all__ = ["workflow_harness"]


@pytest.fixture
def workflow_harness(workflow_app: Celery) -> WorkflowHarness:
    """Runs the app's workflows in the test's own process, with a clock of its own."""
    return WorkflowHarness(workflow_app)
