"""What goes wrong with Celery's own canvases, done as durable workflows."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import chain, chord, group

from celery_workflow import durable

from ..celery.workers import eventually
from .run_sites import RunSite, of_each_step

DATABASES = ["postgresql"]


@pytest.mark.parametrize("header", ["tasks", "chains", "chords"])
def test_an_error_callback_is_called_once_and_the_body_not_at_all(working_site: RunSite, header: str):
    """J02."""
    site, tasks = working_site, working_site.tasks
    ok, bad = tasks.add.si(1, 1), tasks.fail.si(header)
    parts = {
        "tasks": [ok, bad, ok],
        "chains": [chain(ok, bad, ok), ok],
        "chords": [chord([ok, bad], tasks.total.s()), ok],
    }[header]
    canvas = chord(parts, tasks.note.si(f"body {header}")).on_error(tasks.note.si(f"error {header}"))
    run = site.ended(durable(canvas, app=site.app).start())
    assert run.status == "failed"
    assert run.stored.record.failed_step.startswith("fail")
    # Handlers are sent when the run is over.
    eventually(lambda: site.marks(f"error {header}") and site.messages() == 0)
    assert (site.marks(f"error {header}"), site.marks(f"body {header}")) == ([f"error {header}"], [])


@pytest.mark.parametrize("kind", ["group", "chord", "chain"])
def test_a_member_that_is_replaced_keeps_its_place(working_site: RunSite, kind: str):
    """J03."""
    site, tasks = working_site, working_site.tasks
    expected = {"group": [0, 2, 4], "chord": 6, "chain": 13}[kind]
    canvas = chord([tasks.echo.si("first"), tasks.replace.si(kind), tasks.echo.si("last")], tasks.echo.s())
    assert durable(canvas, app=site.app).start().result(60) == ["first", expected, "last"]


def test_nested_chords_call_each_body_once(working_site: RunSite):
    """J04."""
    site, tasks = working_site, working_site.tasks
    part = chain(tasks.add.si(1, 1), group(tasks.add.s(1), tasks.add.s(2)), tasks.total.s())
    canvas = chain(group(part.clone() for _ in range(3)), tasks.total.s(), tasks.note.s())
    run = durable(canvas, app=site.app).start()
    assert run.result(60) == 21
    assert site.marks("21") == ["21"]
    assert set(of_each_step(run).values()) == {1}
    eventually(lambda: site.messages() == 0)
    assert all("chord_unlock" not in worker.text for worker in site.workers)


def test_a_chain_of_chords_is_small_and_quick_to_start(working_site: RunSite):
    """J05: 20 chords of 10."""
    site, tasks = working_site, working_site.tasks
    canvas: Any = chain(*[chord([tasks.add.si(n, n) for n in range(10)], tasks.total.s()) for _ in range(20)])
    used = time.process_time()
    run = durable(canvas, app=site.app).start()
    assert time.process_time() - used < 2
    [[size]] = site.sql("SELECT length(body) FROM {definition} ORDER BY length(body) DESC LIMIT 1")
    assert size < 1_000_000
    assert run.result(120) == 90
    assert set(of_each_step(run).values()) == {1}


@pytest.mark.soak
@pytest.mark.timeout(2000)
def test_a_map_over_twenty_thousand_items(working_site: RunSite):
    """J10."""
    site, count = working_site, 20_000
    flow = site.workflow(lambda w: w.step(site.tasks.total.s(w.map(site.tasks.echo, list(range(count)), max_parallel=50))))
    run = flow.start()
    eventually(lambda: run.progress().get("succeeded"), 60)
    assert run.result(1900) == sum(range(count))
