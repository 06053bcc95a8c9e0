"""Flower, started as its users start it: its pages, its HTTP API and its remote control, and what is left of a dead one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from kombu_sqlqueue.process import process_for

from .flowers import Flower, bare_url
from .workers import Site, eventually

#: Each with workers for minutes: what differs on MariaDB is tested elsewhere.
DATABASES = ("sqlite", "postgresql")

NAME = "w1@test"
TASKS = "tests.celery.tasks"
#: How long, in seconds, the living may take to clear up after the dead, on a busy machine.
CLEARED_WITHIN = 180
LOAD = 100


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    """A worker that takes no more than it can run, and sends no events until Flower asks for them."""
    shared_site.worker("-c2", "--prefetch-multiplier=1")
    return shared_site


@pytest.fixture(scope="module", params=["app", "url"])
def flower(request: pytest.FixtureRequest, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """Started next to the app, and with nothing but a URL, where no app can be found."""
    how = ["-A", TASKS] if request.param == "app" else [f"--broker={bare_url(site)}"]
    flower = Flower(site, *how, directory=None if request.param == "app" else tmp_path_factory.mktemp("nowhere"))
    try:
        flower.wait_ready()
        eventually(lambda: "enabled by remote" in site.workers[0].text)
        # It asks the workers what they are once as it begins, for a second only.
        eventually(lambda: NAME in flower.get("/api/workers", refresh="true"))
        yield flower
    finally:
        flower.kill()


def state(flower: Flower, task_id: str) -> str | None:
    return flower.get("/api/tasks", limit=1000).get(task_id, {}).get("state")


def queues(flower: Flower) -> dict[str, dict[str, Any]]:
    return {queue["name"]: queue for queue in flower.get("/api/queues/length")["active_queues"]}


# -- seeing -------------------------------------------------------------------------------


def test_workers_are_shown(flower: Flower):
    shown = eventually(lambda: flower.get("/api/workers", refresh="true").get(NAME, {}).get("stats") and flower)
    worker = shown.get("/api/workers")[NAME]

    assert [queue["name"] for queue in worker["active_queues"]] == ["celery"]
    assert f"{TASKS}.add" in worker["registered"]
    assert worker["stats"]["pool"]["max-concurrency"] == 2
    assert NAME in flower.get("/")
    assert "celery" in flower.get(f"/worker/{NAME}")


def test_tasks_are_shown_as_they_end(site: Site, flower: Flower):
    good, bad = site.send("add", 1, 2), site.send("fail")
    eventually(lambda: (state(flower, good.id), state(flower, bad.id)) == ("SUCCESS", "FAILURE"))

    told = flower.get(f"/api/task/info/{good.id}")
    assert (told["name"], told["args"], told["result"], told["worker"]) == (f"{TASKS}.add", "(1, 2)", "3", NAME)
    assert "failed on purpose" in flower.get(f"/task/{bad.id}")


def test_the_broker_page_tells_how_full_the_queues_are(site: Site, flower: Flower):
    """What runs, what waits for a worker and what waits for its time are told apart."""
    running = [site.send("sleep_late", "long", 60) for _ in range(2)]
    eventually(lambda: queues(flower)["celery"]["messages_unacknowledged"] == 2)
    waiting = [site.send("add", 1, 1) for _ in range(3)] + [site.send("add", 1, 1, countdown=600)]
    full = queues(flower)["celery"]
    page = flower.get("/broker")

    for result in [*running, *waiting]:
        result.revoke(terminate=True)
    assert (full["messages"], full["messages_ready"], full["messages_delayed"], full["consumers"]) == (6, 3, 1, 1)
    assert '<td id="celery">' in page or ">celery<" in page.replace("\n", "").replace(" ", "")
    site.app.control.purge()
    eventually(lambda: queues(flower)["celery"]["messages"] == 0)


def test_metrics_count_the_tasks(site: Site, flower: Flower):
    site.send("echo", "counted")

    eventually(lambda: f'task="{TASKS}.echo",type="task-succeeded"' in flower.get("/metrics"))


# -- ordering -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "arguments", "answer"),
    [
        ("worker/queue/add-consumer", {"queue": "extra"}, "add consumer extra"),
        ("worker/queue/cancel-consumer", {"queue": "extra"}, "no longer consuming from extra"),
    ],
)
def test_a_worker_does_what_flower_says(flower: Flower, path: str, arguments: dict[str, Any], answer: str):
    """Each order is answered in time: Flower waits a second."""
    assert answer in flower.post(f"/api/{path}/{NAME}", **arguments)["message"]


@pytest.mark.parametrize("flower", ["app"], indirect=True)
@pytest.mark.parametrize(
    ("path", "arguments"), [("rate-limit", {"ratelimit": "1000/s"}), ("timeout", {"soft": 60, "hard": 90})]
)
def test_a_task_is_limited(flower: Flower, path: str, arguments: dict[str, Any]):
    """Flower limits and applies only tasks that its own app has; with a bare URL it has none."""
    answer = flower.post(f"/api/task/{path}/{TASKS}.echo", workername=NAME, **arguments)

    assert "set successfully" in answer["message"]


def test_a_task_is_sent(flower: Flower):
    sent = flower.post(f"/api/task/send-task/{TASKS}.add", {"args": [1, 2]})["task-id"]

    eventually(lambda: state(flower, sent) == "SUCCESS")


@pytest.mark.parametrize("flower", ["app"], indirect=True)
def test_a_task_is_applied_and_its_result_read(flower: Flower):
    assert flower.post(f"/api/task/apply/{TASKS}.add", {"args": [1, 2]})["result"] == 3

    sent = flower.post(f"/api/task/async-apply/{TASKS}.add", {"args": [3, 4]})["task-id"]
    eventually(lambda: flower.get(f"/api/task/result/{sent}").get("result") == 7)


def test_a_task_is_revoked(site: Site, flower: Flower):
    """One that runs, and one whose time has not come."""
    running, delayed = site.send("sleep_late", "revoked", 60), site.send("record", "never", countdown=2)
    eventually(lambda: state(flower, running.id) == "STARTED")
    flower.post(f"/api/task/revoke/{running.id}", terminate="true")
    flower.post(f"/api/task/revoke/{delayed.id}")

    for result in (running, delayed):
        eventually(lambda result=result: state(flower, result.id) == "REVOKED")
    assert site.marks("never") == []


def test_a_worker_grows_and_shrinks_and_is_shut_down(site: Site, flower: Flower):
    """One of its own, as the other tests count on how many processes theirs has."""
    worker = site.worker("-Qother")
    name = f"w{len(site.workers)}@test"
    eventually(lambda: name in flower.get("/api/workers", refresh="true"))
    assert "Growing" in flower.post(f"/api/worker/pool/grow/{name}", n=1)["message"]
    assert "Shrinking" in flower.post(f"/api/worker/pool/shrink/{name}", n=1)["message"]
    assert "Shutting down" in flower.post(f"/api/worker/shutdown/{name}")["message"]

    assert worker.process.wait(60) == 0, worker.text


# -- leaving ------------------------------------------------------------------------------


def test_killed_flowers_leave_nothing_behind(site: Site):
    """Three, killed while events pour in: their queues, bindings, consumers and messages go, as if they had never been."""
    before = rows(site)
    for _ in range(3):
        flower = Flower(site, "-A", TASKS)
        try:
            flower.wait_ready()
            for number in range(LOAD):
                site.send("add", number, 1)
            eventually(lambda flower=flower: flower.get("/api/tasks", limit=1))
        finally:
            flower.kill()

    assert rows(site) - before
    eventually(lambda: site.waiting() == 0)
    eventually(lambda: not rows(site) - before, CLEARED_WITHIN)


def rows(site: Site) -> set[tuple[str, str]]:
    """What the tables hold for queues, by table and queue."""
    database = process_for(site.database).database
    tables = database.tables
    named = {table.name: table.c.queue for table in (tables.binding, tables.consumer, tables.message)}
    named |= {tables.queue.name: tables.queue.c.name, tables.waiter.name: tables.waiter.c.topic}
    return {
        (name, queue)
        for name, column in named.items()
        for queue in database.statement(lambda tx, column=column: tx.execute(select(column)).scalars().all())
    }
