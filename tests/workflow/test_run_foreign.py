"""Redis or RabbitMQ as broker: steps leave through the outbox, their outcomes are rows all the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_workflow import RunFailedError
from kombu_sqlqueue.errors import TransactionNotSupportedError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..celery.outboxes import BROKERS, broker_url
from ..celery.workers import eventually
from .apps import wipe_all
from .run_sites import OutboxRunSite, of_each_step

DATABASES = ["postgresql"]
#: Seconds for which Redis keeps from others what a worker has taken.
VISIBILITY_TIMEOUT = 2
MakeSite = Callable[..., OutboxRunSite]


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_site(database_options: DatabaseOptions, tmp_path: Path, broker: str) -> Iterator[MakeSite]:
    """With a relay. What a worker of Redis loses comes back, also if that one was killed while it looked for such."""
    made: list[OutboxRunSite] = []

    def make(**conf: Any) -> OutboxRunSite:
        site = OutboxRunSite(database_options, tmp_path, broker_url(broker), **conf)
        made.append(site)
        if broker == "redis":
            told = json.loads(site.environment["TEST_CONF"]) | {
                "broker_transport_options": {"visibility_timeout": VISIBILITY_TIMEOUT, "unacked_mutex_expire": 1}
            }
            site.environment["TEST_CONF"] = json.dumps(told)
        site.relay()
        return site

    yield make
    for site in made:
        wipe_all(site.app)
        process_for(site.outbox_options.database).close()
        site.close()


def backend_of(name: str, options: DatabaseOptions) -> dict[str, Any]:
    if name == "sql":
        return {
            "result_backend": f"sqlqueue+{options.url}",
            "result_backend_transport_options": {"schema": options.schema},
        }
    return {"result_backend": BROKERS["redis"] if name == "redis" else "disabled://"}


@pytest.mark.parametrize(
    ("broker", "backend"),
    [("redis", "redis"), ("redis", "sql"), ("redis", "disabled"), ("rabbitmq", "sql"), ("rabbitmq", "disabled")],
)
def test_workflows_end_there_too(make_site: MakeSite, database_options: DatabaseOptions, backend: str):
    """J11: with any result backend, or none."""
    site = make_site(**backend_of(backend, database_options))
    site.worker("-c2")

    @site.workflow
    def flow(w: Any) -> Any:
        parts = w.map(site.tasks.add, [[1, 2], [3, 4]], star=True, max_parallel=1)
        after = w.step(site.tasks.quiet.s("kept"), after=parts)
        retried = w.step(site.tasks.retried.s(1), after=after)
        inner = w.sub(site.tasks.double_sum, x=2)
        grown = w.expand(site.tasks.expand.s("chord"))
        replaced = w.step(site.tasks.replace.s("group"))
        nap = w.sleep(0.2)
        return [
            w.step(site.tasks.total.s(parts)),
            retried,
            inner,
            grown,
            replaced,
            w.step(site.tasks.note.s("n"), after=nap),
        ]

    run, bad = flow.start(), site.run(site.tasks.fail.s("bad"))
    tried = site.run(site.tasks.flaky.s("tried", 1), retry={"max_attempts": 2, "delay": 0.1})
    snoozed, ignored = site.run(site.tasks.snoozes.s(1)), site.run(site.tasks.ignore.s())
    by_name = site.tasks.double_sum.delay(x=5)
    assert run.result(60) == [10, [3, 20, 2], 4, 6, [0, 2, 4], "n"]
    with pytest.raises(RunFailedError, match="bad"):
        bad.result(60)
    assert (tried.result(60), snoozed.result(60), ignored.result(60)) == ("tried", 2, None)
    assert eventually(lambda: site.flows.runs(name="double_sum", status="succeeded"))
    if backend != "disabled":
        assert run.async_result().get(timeout=30) == run.result(1)
        assert by_name.get(timeout=30) == 10
        with pytest.raises(ValueError, match="bad"):
            bad.async_result().get(timeout=30)
        assert site.app.AsyncResult(tried.steps()["flaky"].task_id).get(timeout=30) == "tried"
    assert set(of_each_step(run).values()) == {1}


def test_a_late_acked_step_survives_its_worker(make_site: MakeSite, broker: str):
    site = make_site()
    first = site.worker()
    run = site.run(site.tasks.slow_late.s("work", 1), site.tasks.note.s("after"))
    eventually(lambda: site.marks("begin work"))
    first.kill()
    if broker == "redis":
        # A worker looks for what Redis hides when it starts, and then every 100 seconds.
        time.sleep(VISIBILITY_TIMEOUT + 1)
    site.worker()
    assert run.result(90) == "after"
    assert of_each_step(run) == {("slow_late", None): 1, ("note", None): 1}
    assert (len(site.marks("begin work")), site.marks("after")) == (2, ["after"])


def test_a_step_that_is_delivered_twice_has_one_outcome(make_site: MakeSite):
    """A relay that dies sends a batch again."""
    site = make_site()
    run = site.run(site.tasks.note.s("work"), site.tasks.note.s("after"))
    eventually(lambda: site.left() == 0)
    [message] = list(site.drain())
    with site.app.connection_for_write() as connection:
        producer = connection.Producer()
        for _ in range(2):
            producer.publish(
                message.body,
                routing_key=site.queue,
                headers=message.headers,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                correlation_id=message.properties["correlation_id"],
            )
    site.worker()
    assert run.result(60) == "after"
    eventually(lambda: len(site.marks("work")) == 2)
    assert site.run(site.tasks.note.s("next")).result(60) == "next"
    assert site.marks("after") == ["after"]
    assert of_each_step(run) == {("note", None): 1, ("note-2", None): 1}


@pytest.mark.parametrize("broker", ["rabbitmq"])
def test_a_backend_that_needs_the_broker_at_once_is_refused(make_site: MakeSite):
    """And no run is left that nobody would move."""
    site = make_site(result_backend="rpc://")
    with pytest.raises(TransactionNotSupportedError, match="use another one with an outbox"):
        site.run(site.tasks.note.s("never"))
    assert site.flows.runs() == []
    assert site.left() == 0


def test_a_run_is_cancelled_there(make_site: MakeSite):
    site = make_site()
    site.worker("-c1")
    running = site.run(site.tasks.slow_late.s("running", 60))
    eventually(lambda: site.marks("begin running"))
    waiting = site.run(site.tasks.note.s("waiting"))
    eventually(lambda: site.left() == 0)
    for run in (waiting, running):
        run.cancel("not wanted")
    for run in (running, waiting):
        assert site.ended(run).status == "cancelled"
    assert site.run(site.tasks.note.s("next")).result(60) == "next"
    assert (site.marks("end running"), site.marks("waiting")) == ([], [])
