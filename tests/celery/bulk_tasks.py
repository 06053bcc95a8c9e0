"""The app under test with a task that sends many."""

from __future__ import annotations

from typing import Any

from celery import Task

from kombu_sqlqueue import bulk_publish

from .tasks import app

__all__ = ["app"]


@app.task(name="sent_in_bulk", bind=True)
def sent_in_bulk(self: Task, number: int) -> list[Any]:
    """Whose task it is."""
    return [self.request.root_id, self.request.parent_id]


@app.task(name="send_in_bulk")
def send_in_bulk(many: int) -> list[str]:
    return [result.id for result in bulk_publish(sent_in_bulk.s(number) for number in range(many))]
