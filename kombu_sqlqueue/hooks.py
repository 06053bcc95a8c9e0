"""How our code gets into a Celery worker, and into Flower, without an import in the user's."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Any

from celery import signals

from . import grouping

__all__ = ["install"]

#: Entry points of packages that own messages: each is called with the app of a worker.
OWNERS = "kombu_sqlqueue.owners"


def install() -> None:
    """Let groups be sent in bulk, and give every worker of this process whose broker is ours what it needs,
    and Flower. Safe to call twice.

    Flower makes a connection before it asks for queues, and only then is there a transport to call this.
    """
    grouping.install()
    signals.worker_init.connect(_prepare_worker, weak=False, dispatch_uid="sqlqueue")
    if "flower" in sys.modules:
        from .contrib import flower

        flower.install()


def _prepare_worker(sender: Any, **kwargs: Any) -> None:
    if sender.app.connection_for_read().transport.driver_type == "sqlqueue":
        # A web process never comes here, and never pays for the worker's modules.
        from .event_sending import EventsStep
        from .worker import NoPrefetchStep, RevokedStep, SQLQueueStep

        sender.app.steps["consumer"].update([SQLQueueStep, RevokedStep, NoPrefetchStep, EventsStep])
        # Whoever may own messages has to be there wherever they are received.
        for owner in entry_points(group=OWNERS):
            owner.load()(sender.app)
