"""Remote control of real workers: whatever `celery inspect` and `celery control` offer."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.worker.control import Panel
from kombu import Queue
from kombu.common import Broadcast

from .workers import Site, eventually

POOLS = {"prefork": "w1@test", "solo": "w2@test", "threads": "w3@test"}
PREFORK = POOLS["prefork"]
TASKS = "tests.celery.tasks"
#: Seconds within which an idle worker answers, on a machine that may be busy with other things.
AT_ONCE = 3.0


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    """A worker of each pool; ordinary tasks go to the one with prefork."""
    shared_site.app.conf.task_queues = [Queue("celery"), Broadcast("everyone")]
    shared_site.environment["TEST_BROADCAST"] = "1"
    shared_site.worker("-Pprefork", "-c2", "-Qcelery,everyone", wait=False)
    shared_site.worker("-Psolo", "-Qtwo,everyone", wait=False)
    shared_site.worker("-Pthreads", "-c2", "-Qthree,everyone", wait=False)
    for worker in shared_site.workers:
        worker.wait_ready()
    return shared_site


def ask(site: Site, command: str, *arguments: Any) -> Any:
    """What the prefork worker answers to `inspect command`."""
    return getattr(site.app.control.inspect([PREFORK], timeout=60), command)(*arguments)[PREFORK]


def order(site: Site, command: str, *arguments: Any, to: str = PREFORK, **options: Any) -> str:
    """What the worker says it did."""
    give = getattr(site.app.control, command)
    (reply,) = give(*arguments, **options, destination=[to], reply=True, timeout=60)
    return reply[to]["ok"]


# -- asking -------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_answers_at_once(site: Site, pool: str):
    """It is woken, it does not poll: the wait ends with the answer, long before the time-out."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert site.app.control.ping([POOLS[pool]], timeout=60) == [{POOLS[pool]: {"ok": "pong"}}]
        took.append(time.monotonic() - began)

    assert min(took) < AT_ONCE


def test_who_asks_three_waits_for_three(site: Site):
    """All answers arrive, and none is waited for that cannot come."""
    began = time.monotonic()
    replies = site.app.control.ping(list(POOLS.values()), timeout=60)

    assert sorted(name for reply in replies for name in reply) == sorted(POOLS.values())
    assert time.monotonic() - began < AT_ONCE


def test_who_asks_all_hears_all(site: Site):
    replies = site.app.control.ping(timeout=2)

    assert sorted(name for reply in replies for name in reply) == sorted(POOLS.values())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("active", lambda answer: answer == []),
        ("reserved", lambda answer: answer == []),
        ("scheduled", lambda answer: answer == []),
        ("revoked", lambda answer: isinstance(answer, list)),
        ("stats", lambda answer: answer["pool"]["max-concurrency"] == 2 and answer["broker"]["transport"]),
        ("registered", lambda answer: f"{TASKS}.add" in answer),
        ("conf", lambda answer: answer["broker_url"].startswith("sqlqueue+")),
        ("active_queues", lambda answer: {"celery"} < {queue["name"] for queue in answer}),
        ("report", lambda answer: "celery:" in answer["ok"]),
        ("clock", lambda answer: answer["clock"] > 0),
        ("memsample", lambda answer: answer.endswith("MB")),
        ("memdump", lambda answer: answer is not None),
        ("ping", lambda answer: answer == {"ok": "pong"}),
    ],
)
def test_inspect(site: Site, command: str, expected: Any):
    """Each command is answered, and with what was asked for."""
    assert expected(ask(site, command))


def test_what_runs_and_what_is_reserved_is_seen_and_revoked(site: Site):
    """Two run, one waits in the worker: the latter is revoked, the former are terminated."""
    running = [site.send("sleep_late", f"seen {i}", 60) for i in range(2)]
    eventually(lambda: len(site.marks("begin seen 0") + site.marks("begin seen 1")) == 2)
    waiting = site.send("record", "never")
    eventually(lambda: [each["id"] for each in ask(site, "reserved")] == [waiting.id])
    assert {each["id"] for each in ask(site, "active")} == {result.id for result in running}
    states = {id: state for id, (state, _) in ask(site, "query_task", running[0].id, waiting.id, "x").items()}
    assert states == {running[0].id: "active", waiting.id: "reserved"}

    site.app.control.revoke(waiting.id)
    eventually(lambda: waiting.id in ask(site, "revoked"))
    for result in running:
        site.app.control.revoke(result.id, terminate=True)
    for result in [*running, waiting]:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=60)
    eventually(lambda: site.waiting() == 0)
    assert site.marks("never") == []


def test_a_revoked_task_does_not_run_when_it_is_due(site: Site):
    """It waits in the database, where no worker has it, until its time."""
    result = site.send("record", "revoked", countdown=1)
    site.app.control.revoke(result.id)

    with pytest.raises(TaskRevokedError):
        result.get(timeout=60)
    assert site.marks("revoked") == []


#: Every command that Celery's workers know, with arguments that change nothing for long.
COMMANDS: dict[str, dict[str, Any]] = {
    "active": {},
    "active_queues": {},
    "add_consumer": {"queue": "any"},
    "autoscale": {"max": 3, "min": 1},
    "cancel_consumer": {"queue": "any"},
    "clock": {},
    "conf": {"with_defaults": True},
    "disable_events": {},
    "election": {"id": "1", "topic": "task", "action": None},
    "enable_events": {},
    "heartbeat": {},
    "hello": {"from_node": "nobody@test"},
    "memdump": {"samples": 2},
    "memsample": {},
    "objgraph": {"num": 2},
    "ping": {},
    "pool_grow": {"n": 1},
    "pool_restart": {},
    "pool_shrink": {"n": 1},
    "query_task": {"ids": ["unknown"]},
    "rate_limit": {"task_name": f"{TASKS}.echo", "rate_limit": "0"},
    "registered": {"taskinfoitems": ["rate_limit"]},
    "report": {},
    "reserved": {},
    "revoke": {"task_id": "unknown"},
    "revoke_by_stamped_headers": {"headers": {"stamp": ["unknown"]}},
    "revoked": {},
    "scheduled": {},
    "stats": {},
    "terminate": {"task_id": "unknown", "signal": "TERM"},
    "time_limit": {"task_name": f"{TASKS}.echo", "soft": 50, "hard": 60},
}
#: It ends the worker instead of answering.
UNANSWERED = {"shutdown"}
#: What the worker was not started with, the machine lacks, or gossip is for: the answer says so.
REFUSED = {"autoscale", "election", "objgraph", "pool_restart"}


def test_no_command_is_left_out():
    """Whatever Celery adds is to be looked at here."""
    assert set(Panel.meta) <= COMMANDS.keys() | UNANSWERED


@pytest.mark.parametrize("command", COMMANDS)
def test_every_pool_answers_every_command(site: Site, command: str):
    """Each pool does it or says why not; the one with prefork can do all."""
    answers: dict[str, Any] = {}
    for reply in site.app.control.broadcast(
        command, arguments=COMMANDS[command], destination=list(POOLS.values()), reply=True, timeout=60
    ):
        answers |= reply

    assert answers.keys() == set(POOLS.values())
    assert "error" not in (answers[PREFORK] or {}) or command in REFUSED, answers


# -- ordering -----------------------------------------------------------------------------


def test_a_rate_limit_holds(site: Site):
    """At one a second, five take four seconds; the first may be late."""
    assert order(site, "rate_limit", f"{TASKS}.record", "1/s") == "new rate limit set successfully"
    for _ in range(5):
        site.send("record", "limited")
    eventually(lambda: len(site.marks("limited")) == 5)
    order(site, "rate_limit", f"{TASKS}.record", "0")

    times = site.times("limited")
    assert times[-1] - times[0] > 2.2


def test_a_time_limit_is_set(site: Site):
    """Celery 5 says so, but goes on with the one its worker started with, whatever the broker."""
    assert order(site, "time_limit", f"{TASKS}.echo", 60, 50) == "time limits set successfully"


def test_the_pool_grows_and_shrinks(site: Site):
    def processes() -> int:
        return len(ask(site, "stats")["pool"]["processes"])

    assert order(site, "pool_grow", 2) == "pool will grow"
    eventually(lambda: processes() == 4)
    assert order(site, "pool_shrink", 2) == "pool will shrink"
    eventually(lambda: processes() == 2)
    assert site.send("add", 1, 2).get(timeout=60) == 3


def test_a_consumer_comes_and_goes(site: Site):
    """What is sent to a queue that was added runs; after it was cancelled it waits."""
    assert "add consumer" in order(site, "add_consumer", "extra")
    site.send("record", "extra", queue="extra")
    eventually(lambda: site.marks("extra"))

    assert "no longer consuming" in order(site, "cancel_consumer", "extra")
    assert "extra" not in {queue["name"] for queue in ask(site, "active_queues")}
    site.send("record", "extra too", queue="extra")
    site.send("add", 1, 2).get(timeout=60)
    assert site.marks("extra too") == []
    assert site.counts("extra").ready == 1


def test_a_consumer_comes_and_goes_in_a_blocking_loop(site: Site):
    """The threads pool has no event loop."""
    order(site, "add_consumer", "more", to=POOLS["threads"])
    site.send("record", "more", queue="more")
    eventually(lambda: site.marks("more"))
    order(site, "cancel_consumer", "more", to=POOLS["threads"])


def test_a_broadcast_task_runs_on_every_worker(site: Site):
    """Each has a queue of its own on the exchange."""
    site.send("record", "heard", queue="everyone")

    eventually(lambda: len(site.marks("heard")) == 3)


def test_a_worker_scales_and_shuts_down(site: Site):
    """Warm, and with nothing left behind but what others use too."""
    worker = site.worker("--autoscale=3,1", "-Qfour", name="w4")
    assert order(site, "autoscale", 4, 2, to="w4@test") == "autoscale now max=4 min=2"
    site.app.control.shutdown(destination=["w4@test"])

    assert worker.process.wait(60) == 0, worker.text
    assert "w4@test.celery.pidbox" not in site.queues()


def test_a_pool_is_restarted(site: Site):
    """By a worker that was started to allow it; its tasks are still watched afterwards."""
    conf = json.loads(site.environment["TEST_CONF"]) | {"worker_pool_restarts": True}
    environment, site.environment = site.environment, site.environment | {"TEST_CONF": json.dumps(conf)}
    worker = site.worker("-Qfive", name="w5")
    site.environment = environment
    assert order(site, "pool_restart", to="w5@test") == "reload started"
    results = [site.send(task, text, 0.1, queue="five") for task in ("sleep_early", "sleep_late") for text in "ab"]

    assert [result.get(timeout=60) for result in results] == ["a", "b", "a", "b"]
    eventually(lambda: site.waiting("five") == 0)
    assert worker.stop() == 0
