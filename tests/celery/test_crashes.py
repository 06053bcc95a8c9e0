"""kill -9, stops and stalls: what runs again, what never does, and what is recorded."""

from __future__ import annotations

import signal
import time

import pytest
from celery.exceptions import WorkerLostError

from .workers import Site, eventually

LEASE = 3.0


def test_a_late_acked_task_runs_again_within_a_lease_plus_a_second(site: Site):
    """Its worker and all children are killed; another worker is up."""
    first = site.worker()
    site.send("sleep_late", "job", 60)
    eventually(lambda: site.marks("begin job"))
    site.worker()
    first.kill()
    killed_at = time.time()

    eventually(lambda: len(site.marks("begin job")) == 2)
    assert site.times("begin job")[1] <= killed_at + LEASE + 1


def test_only_the_parent_killed(site: Site):
    """The children are orphans; the message is taken back all the same."""
    first = site.worker()
    site.send("sleep_late", "job", 1.5)
    eventually(lambda: site.marks("begin job"))
    first.signal(signal.SIGKILL)
    site.worker()

    eventually(lambda: len(site.marks("begin job")) == 2)
    eventually(lambda: site.waiting() == 0)


def test_prefetched_tasks_of_a_killed_worker_run(site: Site):
    """None of what was claimed but not begun is lost; the begun one was acked early and may not run again."""
    first = site.worker("--prefetch-multiplier=8")
    running = site.send("sleep_early", "running", 60)
    eventually(lambda: site.marks("begin running"))
    for i in range(6):
        site.send("record", f"waiting {i}")
    eventually(lambda: site.counts().leased == 6)
    first.kill()
    site.worker()

    eventually(lambda: len(site.marks()) == 7)
    assert sorted(site.marks())[1:] == [f"waiting {i}" for i in range(6)]
    with pytest.raises(WorkerLostError, match="died while it ran the task"):
        running.get(timeout=60)


def test_an_early_acked_task_that_dies_with_its_worker_ends_as_failure(site: Site):
    """At most once is kept, and silence is not an answer: the message is dead, the error names the worker."""
    first = site.worker()
    result = site.send("sleep_early", "job", 60)
    eventually(lambda: site.counts().started == 1)
    first.kill()
    site.worker()

    with pytest.raises(WorkerLostError, match=str(first.process.pid)):
        result.get(timeout=60)
    assert site.marks() == ["begin job"]
    assert site.counts().dead == 1


def test_a_killed_child_ends_its_task_as_celery_says(site: Site):
    """A late ack without reject_on_worker_lost: FAILURE, recorded by the parent at once."""
    site.worker()
    result = site.send("kill_own_process")

    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    assert site.marks() == ["killed child"]
    eventually(lambda: site.waiting() == 0)


def test_a_poison_task_dies_and_the_task_behind_it_runs(site: Site):
    """It kills every process that takes it: tried max_reclaims + 1 times, then dead and recorded."""
    site.worker()
    result = site.send("poison")
    site.send("record", "healthy")

    with pytest.raises(WorkerLostError, match="is not tried again"):
        result.get(timeout=60)
    assert len(site.marks("poison")) == 6
    eventually(lambda: site.marks("healthy"))
    assert site.counts().dead == 1


def test_a_poison_task_that_kills_whole_workers_dies(make_site):
    """Each worker that takes it is killed, parent and all; after max_reclaims nobody gets it any more."""
    site = make_site(options={"lease_for": 1, "max_reclaims": 2})
    result = site.send("sleep_late", "bad", 60)
    for i in range(3):
        site.send("record", f"behind {i}")
    for tries in range(1, 4):
        worker = site.worker()
        eventually(lambda tries=tries: len(site.marks("begin bad")) == tries)
        eventually(lambda: site.begun() == 1)
        worker.kill()
    site.worker()

    with pytest.raises(WorkerLostError, match="3 times"):
        result.get(timeout=60)
    assert len(site.marks("begin bad")) == 3
    eventually(lambda: site.waiting() == 0)
    assert sorted(site.marks())[:3] == ["begin bad"] * 3
    assert sorted(site.marks())[3:] == ["behind 0", "behind 1", "behind 2"]
    assert site.counts().dead == 1


def test_an_early_acked_task_that_kills_its_solo_worker_at_once_runs_once(site: Site):
    """The database knows that it began before its first instruction runs."""
    first = site.worker("-Psolo")
    result = site.send("kill_own_process_early")
    first.process.wait(60)
    site.worker("-Psolo")

    with pytest.raises(WorkerLostError, match="died while it ran the task"):
        result.get(timeout=60)
    assert site.marks() == ["killed child"]


def test_a_stalled_worker_cannot_harm_the_new_holder(site: Site):
    """SIGSTOP for longer than a lease, another worker takes over, SIGCONT: the late ack deletes nothing of the other's."""
    first = site.worker()
    site.send("sleep_late", "job", 1)
    eventually(lambda: site.marks("begin job"))
    first.signal_group(signal.SIGSTOP)
    site.worker()
    eventually(lambda: len(site.marks("begin job")) == 2)
    first.signal_group(signal.SIGCONT)

    eventually(lambda: site.waiting() == 0)
    eventually(lambda: "taken for dead" in first.text)
    site.send("record", "after")
    eventually(lambda: site.marks("after"))
    assert site.marks("begin job") == ["begin job"] * 2


def test_a_stalled_worker_does_not_retry_what_another_has_retried(site: Site):
    """SIGSTOP for longer than a lease, another worker takes over and sends the retry: the stalled task sends no second one."""
    first = site.worker()
    site.send("sleep_and_retry", "job", 1)
    eventually(lambda: site.marks("try 0 of job"))
    first.signal_group(signal.SIGSTOP)
    site.worker()
    eventually(lambda: site.marks("try 1 of job") and site.waiting() == 0)
    first.signal_group(signal.SIGCONT)

    eventually(lambda: "a retry was not sent" in first.text)
    assert site.waiting() == 0
    assert site.marks("try 1 of job") == ["try 1 of job"]


def test_a_restarted_worker_of_the_same_name_does_not_keep_the_dead_ones_lease(site: Site):
    """A lease belongs to a process, not to a node name."""
    first = site.worker(name="same")
    site.send("sleep_late", "job", 2)
    eventually(lambda: site.marks("begin job"))
    first.kill()
    site.worker(name="same")

    eventually(lambda: len(site.marks("begin job")) == 2)
