"""Work is shared: no worker sits on what another could do, and what is not due burdens none."""

from __future__ import annotations

import time

import psutil
import pytest

from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.process import process_for

from .workers import Site, Worker, eventually

MEGABYTE = 1_000_000


def test_a_worker_with_a_long_task_holds_no_short_ones(site: Site):
    """A prefetch multiplier of 1 and late acks: the other worker does all that is short."""
    site.worker("--prefetch-multiplier=1")
    site.worker("--prefetch-multiplier=1")
    site.send("sleep_late", "long", 15)
    eventually(lambda: site.marks("begin long"))
    for i in range(6):
        site.send("sleep_late", f"short {i}", 0.1)

    eventually(lambda: all(site.marks(f"end short {i}") for i in range(6)), 5)
    assert not site.marks("end long")


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_what_was_claimed_ahead_of_long_tasks_is_given_back(site: Site, pool: str):
    """Short tasks come in large claims; when long ones follow, a worker keeps its prefetch window and no more."""
    site.worker("--pool", pool, "-c1")
    for i in range(300):
        site.send("record", f"short {i}")
    for i in range(60):
        site.send("sleep_late", f"long {i}", 3)

    eventually(lambda: site.marks("begin long 0"))
    eventually(lambda: site.counts().leased <= 4, 3)
    assert len([mark for mark in site.marks() if mark.startswith("short")]) == 300
    assert site.marks("begin long 1") == []


def test_delayed_tasks_burden_no_worker(site: Site):
    """Twenty thousand tasks are due in an hour: they stay rows, the worker stays small, and what is due now runs."""
    worker = site.worker()
    before = memory(worker)
    due_at = int((time.time() + 3600) * 1_000_000)
    messages = process_for(site.database).messages
    for _ in range(20):
        messages.publish([NewMessage("celery", b"[[], {}, {}]", "{}", due_at=due_at) for _ in range(1000)])
    site.send("record", "now")

    eventually(lambda: site.marks("now"))
    eventually(lambda: site.counts().leased == 0)
    assert site.counts().delayed == 20_000
    assert memory(worker) - before < 50 * MEGABYTE


def test_workers_share_what_becomes_due(site: Site):
    """Delayed tasks belong to nobody before they are due, then to whoever has time."""
    workers = [site.worker("--prefetch-multiplier=1") for _ in range(2)]
    for i in range(12):
        site.send("sleep_late", f"due {i}", 0.3, countdown=2)

    eventually(lambda: all(site.marks(f"end due {i}") for i in range(12)))
    for worker in workers:
        assert worker.text.count(" succeeded in ") >= 3


def test_a_task_that_runs_out_of_memory_does_not_block_the_next(site: Site):
    worker = site.worker()
    result = site.send("out_of_memory")
    site.send("record", "healthy")

    eventually(lambda: site.marks("healthy"), 10)
    assert worker.process.poll() is None
    with pytest.raises(MemoryError):
        result.get(timeout=60)
    eventually(lambda: site.waiting() == 0)


def memory(worker: Worker) -> int:
    """Bytes that the worker and its children use."""
    processes = [psutil.Process(worker.process.pid), *psutil.Process(worker.process.pid).children(recursive=True)]
    return sum(process.memory_info().rss for process in processes)
