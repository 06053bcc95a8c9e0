"""What cannot be done at the moment at which it is asked for is done a moment later, by the thread that keeps the leases."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest
from kombu import Connection, Consumer, Queue
from sqlalchemy import event

from kombu_sqlqueue.errors import StoreUnavailableError
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
    """Celery cancels its consumers in a signal handler: whatever the main thread was doing then has not ended yet."""
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


def test_what_had_to_wait_is_done_before_a_queue_is_declared_anew(
    process: Process, database_options: DatabaseOptions, monkeypatch: pytest.MonkeyPatch
):
    """Else the consumer that could not be cancelled while the database was away would take the queue with it, just before
    somebody consumes from it."""
    mailbox = Queue("mailbox", auto_delete=True)
    options = {"schema": database_options.schema, "lease_for": 3}
    first, second = (Connection(f"sqlqueue+{database_options.url}", transport_options=options) for _ in range(2))
    Consumer(first, [mailbox]).consume()
    keeper = first.transport.keeper

    with monkeypatch.context() as outage:
        outage.setattr(process.routing, "cancel", refuse)
        first.release()
        assert keeper._deferred
    mailbox(second.default_channel).declare()
    # Its thread may come at any moment.
    keeper._do_deferred()
    Consumer(second, [mailbox], auto_declare=False).consume()

    assert process.routing.consumers("mailbox") == 1
    second.release()
    assert process.routing.queue("mailbox") is None


def refuse(*args: object) -> None:
    raise StoreUnavailableError("away")
