"""Connections are cut, or the server is away: everything goes on by itself, in the same processes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from kombu_sqlqueue.errors import OutcomeUnknownError
from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for

from ..databases import migrate
from ..servers import PostgresServer, started_server
from .workers import Site, eventually

POOLS = ["prefork", "threads", "solo", "gevent"]
#: Each worker serves two queues.
QUEUES = [f"{pool}_{letter}" for pool in POOLS for letter in "ab"]
#: So large that nothing found by polling can be taken for something that was told.
INTERVAL = 20.0
#: The share of a processor that a worker may use while it has nothing to do, or nobody to talk to.
BUSY = 0.25


class Deployment:
    """A server, a worker of each pool, and a beat that sends to the first queue each second."""

    def __init__(self, server: PostgresServer, site: Site) -> None:
        self.server = server
        self.site = site
        self.workers = [site.worker("-P", p, "-Q", f"{p}_a,{p}_b", name=p, wait=False) for p in POOLS]
        self.beat = site.beat()
        for worker in self.workers:
            worker.wait_ready()
        self._sent = 0

    def all_serve(self, within: float = 60.0) -> None:
        """Every queue is served, and beat goes on, in the processes of the beginning."""
        self._sent += 1
        for queue in QUEUES:
            self.send(f"{queue} {self._sent}", queue)
        ticks = len(self.site.marks("tick"))
        eventually(lambda: set(self.site.marks()) >= {f"{queue} {self._sent}" for queue in QUEUES}, within)
        eventually(lambda: len(self.site.marks("tick")) > ticks, within)
        assert [each.process.poll() for each in (*self.workers, self.beat)] == [None] * (len(POOLS) + 1)

    def send(self, text: str, queue: str) -> None:
        self.site.send("record", text, queue=queue)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    pytest.importorskip("gevent")
    with started_server() as server:
        server.start()
        options = DatabaseOptions(normalise(server.url))
        migrate(options)
        site = Site(
            options,
            tmp_path_factory.mktemp("site"),
            # Kombu tries to connect once only, so that a sender is told at once.
            options={"polling_interval": INTERVAL, "max_retries": 1, "interval_start": 0, "interval_max": 0.1},
            beat_schedule={
                "tick": {
                    "task": "tests.celery.tasks.record",
                    "schedule": 1.0,
                    "args": ["tick"],
                    "options": {"queue": QUEUES[0]},
                }
            },
        )
        try:
            yield Deployment(server, site)
        finally:
            site.close()
            process_for(options).close()


@pytest.fixture
def waiting(deployment: Deployment) -> Iterator[Callable[[], Any]]:
    """Somebody waits in `get()` for a task that takes a while; the answer is what came of it."""
    result = deployment.site.send("sleep_late", "waited for", 3.0, queue=QUEUES[1])
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(result.get(timeout=120)))
    thread.start()

    def answer() -> Any:
        thread.join(120)
        return answers

    yield answer
    answer()


def test_three_cuts_in_three_seconds_stop_nobody(deployment: Deployment, waiting: Callable[[], Any]):
    """Every connection of everybody: workers, their children, beat, who sends and who waits."""
    deployment.all_serve()
    for _ in range(3):
        assert deployment.server.cut() > len(POOLS)
        time.sleep(1)

    deployment.all_serve(20)
    assert waiting() == ["waited for"]


@pytest.mark.parametrize("outage", [8.0, pytest.param(60.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_comes_back_is_found_again(
    deployment: Deployment, waiting: Callable[[], Any], mode: str, outage: float
):
    """Away for longer than a lease. Nobody is in a hurry meanwhile, and what was sent before runs after."""
    for queue in QUEUES:
        deployment.site.send("record", f"later {queue} {mode} {outage}", queue=queue, countdown=outage / 2)
    deployment.server.stop(mode)
    used = [worker.processor_time() for worker in deployment.workers]
    time.sleep(outage)
    shares = [(worker.processor_time() - before) / outage for worker, before in zip(deployment.workers, used, strict=True)]
    deployment.server.start()

    deployment.all_serve()
    assert waiting() == ["waited for"]
    eventually(lambda: set(deployment.site.marks()) >= {f"later {queue} {mode} {outage}" for queue in QUEUES})
    assert max(shares) < BUSY, shares


@pytest.mark.parametrize("later", [3.0, pytest.param(30.0, marks=pytest.mark.soak)])
def test_a_line_that_listened_is_made_again(deployment: Deployment, later: float):
    """A task sent a while after it was cut alone starts at once, long before anybody would look unasked."""
    deployment.all_serve()
    assert deployment.server.cut("sqlqueue listen") >= len(POOLS)
    used = [worker.processor_time() for worker in deployment.workers]
    time.sleep(later)
    shares = [(worker.processor_time() - before) / later for worker, before in zip(deployment.workers, used, strict=True)]
    deployment.all_serve(INTERVAL / 4)

    assert max(shares) < BUSY, shares


def test_no_task_waits_for_long_while_the_line_that_listens_is_cut_again_and_again(deployment: Deployment):
    """Three hundred at random times, a cut each half second."""
    stop = threading.Event()
    cuts: list[int] = []

    def cutting() -> None:
        while not stop.wait(0.5):
            cuts.append(deployment.server.cut("sqlqueue listen"))

    cutter = threading.Thread(target=cutting)
    cutter.start()
    sent_at = {}
    for number in range(300):
        time.sleep(random.uniform(0, 0.04))
        sent_at[f"cut {number}"] = time.time()
        deployment.send(f"cut {number}", random.choice(QUEUES))
    eventually(lambda: set(deployment.site.marks()) >= sent_at.keys(), INTERVAL + 5)
    stop.set()
    cutter.join()

    assert sum(cuts) > 5
    assert len([mark for mark in deployment.site.marks() if mark.startswith("cut ")]) == 300
    waits = [deployment.site.times(text)[0] - at for text, at in sent_at.items()]
    assert max(waits) < INTERVAL + 5


def test_what_was_sent_while_the_server_came_and_went_runs_and_nothing_else(deployment: Deployment):
    """Whoever was told that it is not stored may say so to its user. (A crash may let a task begin twice: guarantees.md.)"""
    deployment.all_serve()
    sent, unknown = [], []
    restarts = threading.Thread(target=restart_thrice, args=(deployment.server,))
    restarts.start()
    number = 0
    while restarts.is_alive():
        number += 1
        try:
            deployment.site.send("record", f"sent {number}", queue=random.choice(QUEUES), retry=False)
            sent.append(f"sent {number}")
        except OutcomeUnknownError:
            unknown.append(f"sent {number}")
        except OperationalError:
            # How many are refused, and how many wait and then succeed, is the machine's matter.
            time.sleep(0.02)
    eventually(lambda: set(deployment.site.marks()) >= set(sent))

    ran = [mark for mark in deployment.site.marks() if mark.startswith("sent ")]
    assert set(ran) <= {*sent, *unknown}
    assert sent


def restart_thrice(server: PostgresServer) -> None:
    for mode in ("fast", "immediate", "fast"):
        server.stop(mode)
        time.sleep(0.3)
        server.start()
        time.sleep(0.7)
