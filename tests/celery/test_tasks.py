"""Plain tasks on a real worker: what every deployment does all day."""

from __future__ import annotations

import signal
import time

import pytest
from celery.exceptions import TaskRevokedError

from .workers import Site, eventually


def test_tasks_run_and_answer(site: Site):
    """Results come back, in the order they are asked for, whoever ran them."""
    site.worker("-c2")
    results = [site.send("add", i, i) for i in range(20)]

    assert [result.get(timeout=60) for result in results] == [2 * i for i in range(20)]


def test_a_task_that_raises_ends_as_failure(site: Site):
    """The exception is raised where the result is asked for, with the worker's traceback."""
    site.worker()
    result = site.send("fail", "as it should")

    with pytest.raises(ValueError, match="as it should"):
        result.get(timeout=60)
    assert "ValueError" in result.traceback


def test_a_retry_runs_again_under_its_own_id(site: Site):
    """Each retry is one more try, and the message of the try before is gone when it is sent."""
    site.worker()
    result = site.send("flaky", "x", 2)

    assert result.get(timeout=60) == 2
    assert site.marks("try x") == ["try x"] * 3
    eventually(lambda: site.waiting() == 0)


def test_an_eta_waits_in_the_database(site: Site):
    """Nobody runs it early, and the worker does not hold it while it waits."""
    worker = site.worker()
    before = time.time()
    site.send("record", "late", countdown=2)

    eventually(lambda: site.counts().delayed == 1)
    assert "Task tests.celery.tasks.record" not in worker.text
    eventually(lambda: site.marks("late"))
    assert site.times("late")[0] >= before + 2


def test_an_eta_longer_than_the_lease_runs_once(site: Site):
    """Waiting is no delivery, so a lease that ends meanwhile repeats nothing."""
    site.worker()
    site.worker()
    site.send("record", "once", countdown=4)

    eventually(lambda: site.marks("once"))
    time.sleep(3.5)  # longer than a lease: time enough for a second copy
    assert site.marks("once") == ["once"]


def test_an_expired_task_is_revoked_and_does_not_run(site: Site):
    """Expired while no worker was up: its state says so and its message is gone."""
    result = site.send("record", "never", expires=0.5)
    time.sleep(0.6)
    site.worker()

    with pytest.raises(TaskRevokedError):
        result.get(timeout=60)
    assert site.marks() == []
    eventually(lambda: site.waiting() == 0)


def test_the_higher_priority_is_served_first(site: Site):
    """As in AMQP: 9 before 0, and first in first out inside each."""
    for name in ("a", "b", "c"):
        site.send("record", f"low {name}")
    site.send("record", "high 1", priority=9)
    site.send("record", "high 2", priority=9)
    site.worker("--prefetch-multiplier=1")

    eventually(lambda: len(site.marks()) == 5)
    assert site.marks() == ["high 1", "high 2", "low a", "low b", "low c"]


def test_one_queue_cannot_starve_another(site: Site):
    """A lone task of one queue runs soon, however many wait in another that the same worker serves."""
    for i in range(200):
        site.send("record", f"many {i}", queue="many")
    site.send("record", "lone", queue="few")
    site.worker("-Qmany,few")

    eventually(lambda: site.marks("lone"))
    assert site.marks().index("lone") <= 10


def test_first_in_first_out(site: Site):
    """One producer, one worker with one process: the order of sending is the order of running."""
    for i in range(100):
        site.send("record", str(i))
    site.worker("--prefetch-multiplier=1")

    eventually(lambda: len(site.marks()) == 100)
    assert site.marks() == [str(i) for i in range(100)]


def test_every_task_runs_exactly_once_among_many_workers(site: Site):
    """Four workers claim from one queue at once: none is lost, none runs twice."""
    for i in range(400):
        site.send("record", str(i))
    for _ in range(4):
        site.worker("-c2", wait=False)

    eventually(lambda: len(site.marks()) >= 400, 60)
    assert sorted(site.marks(), key=int) == [str(i) for i in range(400)]


def test_delivery_facts_reach_the_task(site: Site):
    """Routing, priority, correlation id and headers arrive as they were sent."""
    site.worker()
    result = site.send("request_facts", priority=7, headers={"tenant": "acme"})
    facts = result.get(timeout=60)

    assert facts["delivery_info"]["routing_key"] == "celery"
    assert facts["delivery_info"]["redelivered"] is False
    assert facts["priority"] == 7
    assert facts["correlation_id"] == result.id
    assert facts["headers"] == {"tenant": "acme"}


@pytest.mark.parametrize("serializer", ["json", "pickle", "msgpack", "yaml"])
def test_arguments_come_back_equal(site_accepting_all: Site, serializer: str):
    """Emoji, NUL and megabytes survive every serializer, there and back."""
    if serializer == "yaml":
        pytest.importorskip("yaml")
    value = {"text": "a\x00b \N{SNAKE} é", "many": "x" * 3_000_000, "list": [1, 2.5, None, True]}
    site_accepting_all.app.conf.result_serializer = "json"
    result = site_accepting_all.send("echo", value, serializer=serializer)

    assert result.get(timeout=60) == value


@pytest.mark.parametrize("compression", ["gzip", "bzip2"])
def test_compressed_messages_arrive(site: Site, compression: str):
    """A compressed body is stored as the bytes it is."""
    site.worker()
    assert site.send("echo", "x" * 10_000, compression=compression).get(timeout=60) == "x" * 10_000


def test_task_protocol_1(site: Site):
    """The old protocol has its fields in the body; it runs and answers all the same."""
    site.app.conf.task_protocol = 1
    site.worker()

    assert site.send("add", 2, 3).get(timeout=60) == 5


def test_reject_sets_aside_what_nobody_wants(site: Site):
    """A rejected message is dead and counted, not gone."""
    site.worker()
    site.send("reject", False)

    eventually(lambda: site.counts().dead == 1)
    assert site.marks() == ["reject"]


def test_a_message_put_back_too_often_is_dead(site: Site):
    """Putting back is immediate and bounded: no task can loop for ever."""
    site.worker()
    result = site.send("reject", True)

    eventually(lambda: site.counts().dead == 1)
    assert len(site.marks("reject")) == 6
    eventually(lambda: result.state == "FAILURE")


def test_a_dead_task_that_cannot_be_told_of_does_not_keep_the_others_waiting(site: Site):
    """What follows the first makes no sense, so that its failure cannot be told to that."""
    site.app.send_task("echo", ("poison",), chain=[5])
    result = site.send("echo", "other")
    with site.app.connection() as connection, connection.channel() as channel:
        while message := channel.basic_get("celery"):
            message.reject(requeue=True)
    assert site.counts().dead == 2
    site.worker()

    eventually(lambda: result.state == "FAILURE")


@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_pools(site: Site, pool: str):
    """The same tasks on each pool, early and late acks."""
    site.worker("-P", pool, "-c2")
    results = [site.send("sleep_late", str(i), 0.01) for i in range(6)] + [site.send("add", i, 1) for i in range(6)]

    assert [r.get(timeout=60) for r in results] == [str(i) for i in range(6)] + [i + 1 for i in range(6)]
    eventually(lambda: site.waiting() == 0)


@pytest.mark.parametrize("event_loop", [True, False])
def test_both_loops(make_site, event_loop: bool):
    """The worker's event loop and the blocking loop do the same job."""
    site = make_site(options={"event_loop": event_loop})
    site.worker("-c2")
    results = [site.send("add", i, 1) for i in range(30)]

    assert [r.get(timeout=60) for r in results] == [i + 1 for i in range(30)]
    eventually(lambda: site.waiting() == 0)


def test_a_long_task_is_delivered_once(site: Site):
    """A task that runs for several leases keeps its lease as long as its worker lives."""
    site.worker()
    site.worker()
    result = site.send("sleep_late", "long", 8)

    assert result.get(timeout=60) == "long"
    assert site.marks() == ["begin long", "end long"]


def test_a_solo_pool_busy_for_long_keeps_its_lease(site: Site):
    """Its main loop is blocked all the while; renewing is another thread's job."""
    site.worker("-Psolo")
    site.worker("-Psolo")
    result = site.send("busy_in_c", 8, acks_late=True)

    result.get(timeout=60)
    assert site.marks() == ["begin busy", "end busy"]


def test_a_stopped_worker_gives_back_what_it_had_not_begun(make_site):
    """Warm shutdown: the running task ends, what was prefetched runs elsewhere at once, not a lease later."""
    site = make_site(options={"lease_for": 600})
    first = site.worker("--prefetch-multiplier=4")
    site.send("sleep_late", "running", 3)
    eventually(lambda: site.marks("begin running"))
    for i in range(3):
        site.send("record", f"waiting {i}")
    eventually(lambda: site.counts().leased == 4)
    first.signal(signal.SIGTERM)
    site.worker()

    eventually(lambda: len(site.marks()) == 5)
    assert first.process.wait(60) == 0
    assert site.marks("begin running") == ["begin running"]
    eventually(lambda: site.waiting() == 0)
