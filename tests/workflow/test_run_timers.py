"""What happens to runs without a task: sleeps, timeouts, deadlines, delayed starts, maps, by any worker, once."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_workflow import Run

from ..celery.workers import eventually
from .run_sites import RunSite, of_each_step

DATABASES = ["postgresql", "sqlite"]


def waits(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


@pytest.fixture(scope="module", autouse=True)
def second_worker(working_site: RunSite) -> None:
    """Any of two may be the one."""
    working_site.worker("-c2", "-Q", "celery,special")


def test_sleeps_end_though_no_task_is_sent(working_site: RunSite):
    site = working_site

    @site.workflow
    def flow(w: Any, until: str) -> Any:
        naps = [w.sleep(0.3), w.sleep(waits(0.5)), w.sleep_until(until)]
        return w.step(site.tasks.note.s("rested"), after=naps)

    started = time.time()
    until = datetime.now(UTC) + waits(0.4)
    runs = [flow.start(until=until.isoformat()) for _ in range(5)]
    assert {run.result(60) for run in runs} == {"rested"}
    assert time.time() > started + 0.5
    for run in runs:
        assert set(of_each_step(run).values()) == {1}
        assert run.stored.record.finished_at - run.stored.record.created_at >= 500_000
    assert len(site.marks("rested")) == 5


@pytest.mark.parametrize(("on_timeout", "status"), [("fail", "failed"), ("skip", "succeeded"), ("discard", "discarded")])
def test_a_signal_that_does_not_come(working_site: RunSite, on_timeout: str, status: str):
    site = working_site
    flow = site.workflow(lambda w: w.step(site.tasks.echo.s(w.wait_for("ok", timeout=0.3, on_timeout=on_timeout))))
    run = site.ended(flow.start())
    assert run.status == status


def test_a_signal_that_comes(working_site: RunSite):
    site = working_site
    flow = site.workflow(lambda w: w.step(site.tasks.echo.s(w.wait_for("ok", timeout=60))))
    run = flow.start()
    assert run.signal("ok", {"by": "ann"}, id="one")
    assert not run.signal("ok", {"by": "bob"}, id="one")
    assert run.result(60) == {"by": "ann"}
    early = flow.options(countdown=0.5).start()
    early.signal("ok", "before it began")
    assert early.result(60) == "before it began"


def test_a_deadline_ends_a_run(working_site: RunSite):
    site = working_site

    @site.workflow(timeout=0.7)
    def flow(w: Any) -> Any:
        nap = w.sleep(60)
        return [w.step(site.tasks.slow.s("deadline", 60)), w.step(site.tasks.echo.s(1), after=nap)]

    run = site.ended(flow.start(), 30)
    assert (run.status, run.stored.record.error.type) == ("failed", "DeadlinePassed")
    assert site.marks("end deadline") == []


def test_a_delayed_start(working_site: RunSite):
    site = working_site
    flow = site.workflow(lambda w: w.step(site.tasks.echo.s(1)))
    by_countdown = flow.options(countdown=0.5).start()
    by_eta = flow.options(eta=datetime.now(UTC) + waits(0.6)).start()
    far = flow.options(countdown=waits(1000)).start()
    for run, least in ((by_countdown, 450_000), (by_eta, 500_000)):
        assert run.result(60) == 1
        assert run.stored.record.started_at - run.stored.record.created_at >= least
    assert far.status == "pending"
    assert far.cancel()
    assert far.status == "cancelled"


def test_a_large_map_keeps_its_bound_and_begins_before_it_is_stored(working_site: RunSite):
    """J10."""
    site = working_site
    # What is asked for is the engine's way; the others show that it is theirs, too.
    count = 800 if site.home.database.dialect.name == "postgresql" else 200

    @site.workflow
    def flow(w: Any) -> Any:
        return w.step(site.tasks.total.s(w.map(site.tasks.echo, list(range(count)), max_parallel=20, name="each")))

    run = flow.start()
    most = 0
    while not run.stored.record.state.is_over:
        counts = Counter(run.progress())
        most = max(most, counts["sent"] + counts["running"])
        time.sleep(0.1)
    assert run.result(60) == sum(range(count))
    assert 0 < most <= 20
    assert run.progress()["total"] == count + 1
    if count > 500:
        last_stored_at, first_done_at = _stored_and_done(run)
        assert first_done_at < last_stored_at


def _stored_and_done(run: Run) -> tuple[int, int]:
    """When the last items were stored, and when the first was over."""
    stored = [entry.at for entry in run.journal() if entry.name == "each" and entry.why == "items"]
    items = run._runtime.store.items(run.id, "each", limit=1)
    return max(stored), items[0].changed_at


@pytest.mark.parametrize(
    ("on_error", "status", "done"), [("fail", "failed", None), ("finish", "failed", 29), ("skip", "succeeded", 29)]
)
def test_a_map_with_an_item_that_fails(working_site: RunSite, on_error: str, status: str, done: int | None):
    site = working_site

    @site.workflow
    def flow(w: Any) -> Any:
        items = [[n, 1] if n != 3 else ["no number", 1] for n in range(30)]
        return w.map(site.tasks.add, items, star=True, max_parallel=4, on_error=on_error, name="each")

    run = site.ended(flow.start())
    assert run.status == status
    succeeded = run.progress().get("succeeded", 0)
    assert succeeded == done if done else succeeded < 29
    if status == "succeeded":
        assert run.result(1) == [None if n == 3 else n + 1 for n in range(30)]
    else:
        assert run.stored.record.error.type in ("ItemsFailed", "TypeError")


def test_a_timer_is_not_lost_with_a_worker(working_site: RunSite):
    """Both are killed while a sleep is due; whoever comes next goes on."""
    site = working_site
    flow = site.workflow(lambda w: w.step(site.tasks.note.s("slept"), after=w.sleep(1)))
    runs = [flow.start() for _ in range(10)]
    for worker in site.workers:
        worker.kill()
    site.sql("UPDATE {event} SET due_at = 0")
    site.worker("-c2", "-Q", "celery,special", name="third")
    for run in runs:
        assert run.result(60) == "slept"
        assert of_each_step(run) == {("sleep", None): 1, ("note", None): 1}
    eventually(lambda: site.messages() == 0)
    assert len(site.marks("slept")) == 10
