"""A run that is cancelled begins nothing more, wherever it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ..celery.workers import eventually
from .run_sites import RunSite

DATABASES = ["postgresql"]
#: Seconds.
LEASE = 3.0


def ten_steps(site: RunSite, name: str) -> Any:
    return site.run(*[site.tasks.slow.s(f"{name} {n}", 0.3 if n < 3 else 1.0) for n in range(10)])


def test_with_no_worker_up_nothing_more_begins(run_site: RunSite):
    """J13."""
    site = run_site
    first = site.worker()
    run = ten_steps(site, "down")
    eventually(lambda: site.marks("begin down 3"))
    first.kill()
    assert run.cancel("not wanted")
    site.worker()
    site.ended(run)
    assert run.status == "cancelled"
    assert site.run(site.tasks.echo.s("next")).result(60) == "next"
    assert site.marks("begin down 4") == []
    assert {step.status for step in run.steps().values()} == {"succeeded", "cancelled"}


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_what_runs_is_terminated_where_the_pool_can(run_site: RunSite, pool: str):
    """J13: elsewhere it comes to its end, and nothing follows."""
    site = run_site
    site.worker("-P", pool)
    run = site.run(
        site.tasks.note.s("before"), site.tasks.slow.s("work", 60 if pool == "prefork" else 3), site.tasks.note.s("after")
    )
    eventually(lambda: site.marks("begin work"))
    at = time.time()
    assert run.cancel("not wanted")
    site.ended(run)
    assert run.status == "cancelled"
    assert run.steps()["slow"].status == ("cancelled" if pool == "prefork" else "succeeded")
    if pool == "prefork":
        assert (run.stored.record.finished_at / 1e6) - at < LEASE / 3
    assert site.run(site.tasks.echo.s("next")).result(60) == "next"
    assert site.marks("after") == []
    eventually(lambda: site.messages() == 0)


def test_children_are_cancelled_or_left_alone(run_site: RunSite):
    site = run_site
    site.worker("-c2")

    @site.workflow
    def outer(w: Any, text: str) -> Any:
        kept = w.step(site.tasks.note.s(text))
        return w.expand(site.tasks.nap.s("go"), after=kept)

    both, alone = outer.start(text="both"), outer.start(text="alone")
    for run in (both, alone):
        eventually(lambda run=run: run.children())
    both.cancel()
    alone.cancel(children=False)
    for run in (both, alone):
        assert site.ended(run).status == "cancelled"
    [child], [left] = both.children(), alone.children()
    assert site.ended(child).status == "cancelled"
    assert left.status == "running"
    left.signal("go")
    assert site.ended(left).status == "succeeded"


def test_what_was_done_is_undone(run_site: RunSite):
    site = run_site
    site.worker("-c2")

    @site.workflow
    def flow(w: Any) -> Any:
        one = w.step(site.tasks.note.s("one"), compensate=site.tasks.note.s("undo one"))
        two = w.step(site.tasks.note.s("two"), after=one, compensate=lambda ref: site.tasks.note.s(ref))
        w.on_cancel(site.tasks.told.s())
        return w.step(site.tasks.slow.s("three", 60), after=two, compensate=site.tasks.note.s("undo three"))

    run = flow.start()
    eventually(lambda: site.marks("begin three"))
    run.cancel("changed my mind")
    assert site.ended(run).status == "cancelled"
    eventually(lambda: site.messages() == 0)
    assert [mark for mark in site.marks() if mark != "begin three"] == [
        "one",
        "two",
        "two",
        "undo one",
        "told changed my mind",
    ]


@pytest.mark.parametrize("waiting", ["eta", "policy", "celery"])
def test_what_waits_for_its_time_is_withdrawn_at_once(run_site: RunSite, waiting: str):
    site = run_site
    site.worker()
    run = {
        "eta": lambda: site.run(site.tasks.note.s("eta").set(countdown=300)),
        "policy": lambda: site.run(site.tasks.fail.s("policy"), retry={"max_attempts": 3, "delay": 300}),
        "celery": lambda: site.run(site.tasks.retried_later.s("celery")),
    }[waiting]()
    if waiting != "eta":
        eventually(lambda: run.errors or site.marks(f"later {waiting}"))
        eventually(lambda: next(iter(run.steps().values())).waits_until)
    run.cancel()
    assert run.status == "cancelled"
    assert site.messages() == 0


def test_many_at_once(make_run_site: Callable[..., RunSite]):
    site = make_run_site()
    site.worker("-c2")
    flow = site.workflow(lambda w: w.map(site.tasks.slow, [[n, 0.05] for n in range(20)], star=True, max_parallel=3))
    runs = [flow.start() for _ in range(5)]
    eventually(lambda: len(site.marks()) > 20)
    for run in runs:
        run.cancel()
    for run in runs:
        assert site.ended(run).status == "cancelled"
    eventually(lambda: site.messages() == 0)
    assert site.flows.reconcile() == []
