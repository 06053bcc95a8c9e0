"""Celery cancels its consumers in a signal handler: whatever the main thread was doing then has not ended yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import event

from kombu_sqlqueue.messages import NewMessage, QueueCounts
from kombu_sqlqueue.options import DatabaseOptions, Options
from kombu_sqlqueue.process import Process, process_for

from .workers import eventually

QUEUE = "interrupted"


@pytest.fixture
def process(database_options: DatabaseOptions) -> Iterator[Process]:
    process = process_for(database_options)
    yield process
    process.messages.purge(QUEUE)
    process.close()


@pytest.mark.timeout(60)
def test_a_cold_shutdown_may_come_in_the_middle_of_a_claim(process: Process, database_options: DatabaseOptions):
    """What the handler gives back is given back a moment later, by the thread that keeps the leases."""
    keeper = process.keeper(Options(database_options, lease_for=timedelta(seconds=3)))
    keeper.consume(QUEUE)
    process.messages.publish([NewMessage(QUEUE, b"[]", "{}") for _ in range(3)])
    held = [delivery.lease for delivery in keeper.claim([QUEUE], 2)]
    handled = []

    def handler(*args: object) -> None:
        keeper.release(held)
        keeper.cancel(QUEUE)
        handled.append(True)

    before = signal.signal(signal.SIGUSR1, handler)
    event.listen(process.database.engine, "begin", lambda connection: os.kill(os.getpid(), signal.SIGUSR1), once=True)
    try:
        claimed = keeper.claim([QUEUE], 5)
    finally:
        signal.signal(signal.SIGUSR1, before)

    def counts() -> tuple[int, int]:
        found = next(iter(process.messages.counts([QUEUE])), QueueCounts(QUEUE))
        return found.ready, found.leased

    assert handled
    assert 1 <= len(claimed) <= 3  # on SQLite those that are given back may be among them
    eventually(lambda: counts() == (3 - len(claimed), len(claimed)), 10)
    for delivery in claimed:
        keeper.ack(delivery.lease)
    eventually(lambda: counts()[1] == 0, 10)
