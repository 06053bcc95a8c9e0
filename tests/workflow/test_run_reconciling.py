"""Runs that nothing moves any more, because somebody deleted what would, and runs that are well."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from ..celery.workers import eventually
from .run_sites import RunSite

DATABASES = ["postgresql"]
NOW = timedelta(0)


def reconciled(site: RunSite, caplog: pytest.LogCaptureFixture, *said: str) -> None:
    """It finds just this, and says so as an error; the next look finds nothing."""
    with caplog.at_level(logging.ERROR, "celery_workflow"):
        found = site.flows.reconcile(quiet_for=NOW)
    assert len(found) == len(said), found
    for text, expected in zip(found, said, strict=True):
        assert expected in text
        assert text in caplog.text
    assert site.flows.reconcile(quiet_for=NOW) == []


def test_a_message_that_is_gone_is_sent_again(run_site: RunSite, caplog: pytest.LogCaptureFixture):
    site = run_site
    run = site.run(site.tasks.note.s("lost"), site.tasks.note.s("after"))
    each = site.workflow(lambda w: w.map(site.tasks.echo, [1, 2, 3], name="each")).start()
    assert site.flows.reconcile(quiet_for=NOW) == []
    site.sql("DELETE FROM {queue_message} WHERE owner = :id", id=run.id)
    ids = [row[0] for row in site.sql("SELECT id FROM {queue_message} WHERE owner = :id ORDER BY id", id=each.id)]
    site.sql("DELETE FROM {queue_message} WHERE id = :id", id=ids[1])

    reconciled(site, caplog, "the message of step note is gone", "the message of item 1 of step each is gone")
    site.worker()
    assert run.result(60) == "after"
    assert each.result(60) == [1, 2, 3]
    assert site.marks("lost") == ["lost"]


def test_timers_that_are_gone_fire(run_site: RunSite, caplog: pytest.LogCaptureFixture):
    site = run_site
    nap = site.workflow(lambda w: w.step(site.tasks.echo.s(1), after=w.sleep(60))).start()
    wait = site.workflow(lambda w: w.wait_for("ok", timeout=60, on_timeout="skip")).start()
    site.sql("DELETE FROM {event}")
    assert site.flows.reconcile(quiet_for=NOW) == []
    site.sql("UPDATE {step} SET due_at = due_at - 120000000 WHERE due_at IS NOT NULL")

    reconciled(site, caplog, "the timer of step sleep is gone", "the timer of step ok is gone")
    assert wait.status == "succeeded"
    site.worker()
    assert nap.result(60) == 1


def test_a_parent_that_was_not_told_is_told(run_site: RunSite, caplog: pytest.LogCaptureFixture):
    site = run_site
    worker = site.worker()
    run = site.workflow(lambda w: w.step(site.tasks.echo.s(w.expand(site.tasks.nap.s("go"))))).start()
    [child] = eventually(run.children)
    worker.kill()
    # The word on its way to the parent is deleted with its last step's end: as if by an operator.
    site.sql("UPDATE {run} SET parent_run = 'nobody' WHERE id = :id", id=child.id)
    child.signal("go", "told")
    site.sql("DELETE FROM {event}")
    site.sql("UPDATE {run} SET parent_run = :parent WHERE id = :id", id=child.id, parent=run.id)
    assert (child.status, run.status) == ("succeeded", "running")
    assert site.flows.reconcile(quiet_for=NOW) == []
    site.sql("UPDATE {run} SET finished_at = finished_at - 120000000 WHERE id = :id", id=child.id)

    reconciled(site, caplog, "step nap was not told")
    site.worker()
    assert run.result(60) == "told"


def test_what_is_well_is_left_alone(working_site: RunSite):
    """Twenty runs at work, looked at again and again."""
    site = working_site

    @site.workflow
    def flow(w: Any) -> Any:
        parts = w.map(site.tasks.echo, list(range(6)), max_parallel=2)
        inner = w.sub(site.tasks.double_sum, x=1)
        return w.step(site.tasks.total.s(parts), after=[inner, w.sleep(0.2)])

    runs = [flow.start() for _ in range(20)]
    for run in runs:
        assert site.flows.reconcile(quiet_for=NOW) == []
        # Sooner than a worker looks by itself: what a locked run is to be told is not left to that.
        site.ended(run, 25)
    assert {run.result(1) for run in runs} == {15}
