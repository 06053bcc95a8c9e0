"""Every pool, and everything that ends a task early on each."""

from __future__ import annotations

import signal

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

from .workers import Site, eventually

#: Each with workers for minutes: what differs on MariaDB is tested elsewhere.
DATABASES = ("sqlite", "postgresql")


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_green_pools_run_many_tasks_at_once(site: Site, pool: str):
    """Twenty tasks that sleep a second end together, and leases are renewed meanwhile."""
    pytest.importorskip(pool)
    site.worker("-P", pool, "-c20")
    results = [site.send("sleep_late", str(i), 1) for i in range(20)]

    assert [result.get(timeout=60) for result in results] == [str(i) for i in range(20)]
    assert site.marks()[:2] == ["begin 0", "begin 1"]
    eventually(lambda: site.waiting() == 0)


def test_a_green_task_longer_than_its_lease_is_delivered_once(site: Site):
    """The keeper is a greenlet there; it renews while the tasks wait."""
    pytest.importorskip("gevent")
    site.worker("-P", "gevent", "-c2")
    site.worker("-P", "gevent", "-c2")

    assert site.send("sleep_late", "long", 7).get(timeout=60) == "long"
    assert site.marks("begin long") == ["begin long"]


@pytest.mark.parametrize("late", [True, False])
def test_a_hard_time_limit_ends_the_task_as_failure(site: Site, late: bool):
    """Its process is killed, the message is settled, the next task runs."""
    site.worker()
    result = site.send("sleep_late" if late else "sleep_early", "slow", 60, time_limit=1)
    site.send("record", "next")

    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=60)
    eventually(lambda: site.marks("next"))
    eventually(lambda: site.waiting() == 0)


@pytest.mark.parametrize("late", [True, False])
def test_a_soft_time_limit_is_raised_in_the_task(site: Site, late: bool):
    """An ordinary exception: the task ends as failure."""
    site.worker()
    result = site.send("sleep_late" if late else "sleep_early", "slow", 60, soft_time_limit=1)

    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=60)
    eventually(lambda: site.waiting() == 0)


def test_a_timeout_that_is_not_acked_runs_again(make_site):
    """acks_on_failure_or_timeout=False puts the message back, within the bound of max_reclaims."""
    site = make_site(task_acks_on_failure_or_timeout=False, options={"max_reclaims": 1})
    site.worker()
    result = site.send("sleep_late", "slow", 60, time_limit=1)

    eventually(lambda: site.counts().dead == 1, 30)
    assert site.marks("begin slow") == ["begin slow"] * 2
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=60)


@pytest.mark.parametrize("bound", ["--max-tasks-per-child=2", "--max-memory-per-child=1"])
def test_children_are_recycled(site: Site, bound: str):
    """A child for every two tasks, or for each since one kilobyte is too little: each task runs once and answers."""
    site.worker("-c2", bound)
    results = [site.send("add", i, i) for i in range(20)]

    assert [result.get(timeout=60) for result in results] == [2 * i for i in range(20)]
    eventually(lambda: site.waiting() == 0)


def test_a_retry_on_worker_lost_counts_as_retry(make_site):
    """The parent sends the retry of a task whose process was killed; the message it replaces is gone."""
    site = make_site(task_retry_on_worker_lost=True)
    site.worker()
    result = site.send("kill_own_process")

    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    assert site.marks("killed child") == ["killed child"] * 2
    eventually(lambda: site.waiting() == 0)


@pytest.mark.parametrize("late", [True, False])
def test_a_task_that_raises_system_exit_in_a_thread_ends_as_failure(make_site, late: bool):
    """Its worker lives, its message is settled, its end is recorded."""
    site = make_site(task_acks_late=late)
    site.worker("-Pthreads")
    result = site.send("leave")
    site.send("record", "next")

    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    eventually(lambda: site.marks("next"))
    eventually(lambda: site.waiting() == 0)


def running(site: Site) -> int:
    """How many tasks run as far as the worker knows: Celery cancels no others, and would wait for their end."""
    active = site.app.control.inspect(timeout=1).active() or {}
    return sum(task["time_start"] is not None for tasks in active.values() for task in tasks)


def test_a_cold_shutdown_gives_back_late_acked_tasks(site: Site):
    """SIGQUIT while a task runs: it is ready at once for the next worker."""
    first = site.worker()
    site.send("sleep_late", "job", 60)
    eventually(lambda: running(site) == 1)
    first.signal(signal.SIGQUIT)
    first.process.wait(60)
    site.worker()

    eventually(lambda: len(site.marks("begin job")) == 2)


def test_a_soft_shutdown_waits_and_then_gives_back(make_site):
    """worker_soft_shutdown_timeout: short tasks end, long ones are given back."""
    site = make_site(worker_soft_shutdown_timeout=4.0)
    first = site.worker("-c2")
    short = site.send("sleep_late", "short", 2)
    site.send("sleep_late", "long", 60)
    eventually(lambda: running(site) == 2)
    first.signal(signal.SIGQUIT)
    first.process.wait(60)

    assert short.get(timeout=60) == "short"
    site.worker()
    eventually(lambda: len(site.marks("begin long")) == 2)
    assert site.marks("begin short") == ["begin short"]


def test_a_bound_on_waiting_tasks_holds_nothing_back(make_site):
    """worker_eta_task_limit bounds what a worker holds for later: here it holds nothing."""
    site = make_site(worker_eta_task_limit=1)
    site.worker()
    for i in range(5):
        site.send("record", f"soon {i}", countdown=1)

    eventually(lambda: len(site.marks()) == 5)


@pytest.mark.parametrize("limit", [0, 1, None])
def test_a_connection_pool_of_any_size_serves_many_threads(make_site, limit: int | None):
    """broker_pool_limit bounds Celery's own pool, or does without one; ours is as large as pool_size says."""
    site = make_site(broker_pool_limit=limit)
    site.worker("-Pthreads", "-c8")
    results = [site.send("add", i, 1) for i in range(40)]

    assert [result.get(timeout=60) for result in results] == [i + 1 for i in range(40)]


def test_without_a_prefetch_limit_a_worker_takes_what_there_is(make_site):
    """worker_prefetch_multiplier=0: everything that is ready is leased to one worker, and given back when it stops."""
    site = make_site(worker_prefetch_multiplier=0)
    site.send("sleep_late", "first", 60)
    for i in range(250):
        site.send("record", str(i))
    worker = site.worker()

    eventually(lambda: site.counts().leased == 251 and running(site) == 1)
    worker.signal(signal.SIGQUIT)
    worker.process.wait(60)
    assert site.counts().leased == 0
    assert site.counts().ready == 251


def test_with_a_prefetch_multiplier_of_one_a_worker_takes_one_for_each_process(make_site):
    """And one more once it has acked the one that runs, if acks are early."""
    site = make_site(worker_prefetch_multiplier=1)
    for i in range(6):
        site.send("sleep_late", str(i), 60)
    site.worker("-c2")

    eventually(lambda: len(site.marks()) == 2)
    assert site.counts().leased == 2
    assert site.counts().ready == 4


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_without_prefetch_a_worker_takes_only_what_it_can_run(make_site, pool: str):
    """worker_disable_prefetch, with early acks too: nothing waits behind the task that runs, another worker gets it."""
    site = make_site(worker_disable_prefetch=True)
    first = site.worker("-P", pool, name="busy")
    for number in range(30):
        site.send("record", f"quick {number}")
    eventually(lambda: len(site.marks()) == 30 and site.waiting() == 0)
    site.send("sleep_early", "long", 60)
    eventually(lambda: site.marks("begin long"))
    for number in range(5):
        site.send("record", str(number))
    site.worker(name="free")

    eventually(lambda: set("01234") <= set(site.marks()))
    assert not site.marks("end long")
    assert "worker_disable_prefetch" not in first.text
