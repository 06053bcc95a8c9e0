"""Starting runs: in a transaction, once for an id, many at once, one after the other, by name, on a schedule."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from celery_workflow import DuplicateRunError, RunNotFoundError, Schedules, WaitTimeoutError, WorkflowError
from kombu_sqlqueue import in_transaction
from kombu_sqlqueue.errors import TransactionNotSupportedError

from ..celery.workers import ROOT, eventually
from .run_sites import RunSite, of_each_step


@pytest.fixture(scope="module", autouse=True)
def second_worker(working_site: RunSite) -> None:
    """Four processes in all."""
    working_site.worker("-c2")


@pytest.fixture
def session(working_site: RunSite) -> Iterator[Session]:
    with Session(create_engine(working_site.database.url, poolclass=NullPool)) as session:
        yield session


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("how", ["connection", "in_transaction"])
def test_a_start_is_a_part_of_the_callers_transaction(working_site: RunSite, session: Session, how: str, ending: str):
    site, text = working_site, f"{how} {ending}"
    flow = site.tasks.marking
    if site.home.database.dialect.name == "mariadb":
        session.connection()
    if how == "connection":
        run = flow.options(connection=session).start(text=text)
    else:
        with in_transaction(session):
            run = flow.start(text=text)
    other = site.run(site.tasks.echo.s("meanwhile")) if site.home.database.has_writers else None
    if other is not None:
        assert other.result(60) == "meanwhile"
        with pytest.raises(RunNotFoundError):
            _ = run.status
    getattr(session, ending)()
    if ending == "commit":
        assert run.result(60) == text
    else:
        with pytest.raises(RunNotFoundError):
            _ = run.status
        assert site.run(site.tasks.echo.s("next")).result(60) == "next"
        assert site.marks(text) == []


def test_who_waits_in_vain_is_told_where_the_run_is(working_site: RunSite):
    run = working_site.workflow(lambda w: w.wait_for("never", timeout=None)).start()
    with pytest.raises(WaitTimeoutError, match=r"is not over after 0\.1 seconds: running, steps: 1 awaiting, 1 total"):
        run.result(0.1)
    run.cancel()


def test_an_id_is_started_once(working_site: RunSite):
    site = working_site
    id = f"order-{uuid.uuid4()}"
    first = site.tasks.double_sum.options(id=id).start(x=1)
    second = site.tasks.double_sum.options(id=id).start(x=5)
    assert (first, second.id) == (second, id)
    assert second.result(60) == 2
    with pytest.raises(DuplicateRunError):
        site.tasks.double_sum.options(id=id, on_conflict="raise").start(x=1)


#: A process that becomes sixteen, which all start one run at once; and one that waits to be killed before its commit.
STARTING = """
    import os, sys
    from tests.workflow.run_app import tasks
    closed, closing = os.pipe()
    children = []
    for _ in range(16):
        pid = os.fork()
        if not pid:
            os.close(closing)
            os.read(closed, 1)
            os._exit(tasks.marking.options(id=sys.argv[1]).start(text=sys.argv[1]).id != sys.argv[1])
        children.append(pid)
    os.close(closing)
    assert not any(os.waitpid(pid, 0)[1] for pid in children)
"""
DYING = """
    import sys, time
    from sqlalchemy import create_engine
    from tests.workflow.run_app import tasks
    with create_engine(sys.argv[2]).begin() as connection:
        tasks.marking.options(id=sys.argv[1], connection=connection).start(text=sys.argv[1])
        print("ready", flush=True)
        time.sleep(600)
"""


def starting(site: RunSite, program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=site.environment,
        cwd=ROOT,
    )


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def test_a_process_that_dies_before_its_commit_has_started_nothing(working_site: RunSite):
    site, id = working_site, f"dead-{uuid.uuid4()}"
    process = starting(site, DYING, id, site.database.url)
    wait_ready(process)
    process.kill()
    process.wait()
    assert site.run(site.tasks.echo.s("next")).result(60) == "next"
    with pytest.raises(RunNotFoundError):
        site.flows.get(id)


def test_sixteen_processes_start_one_run(working_site: RunSite):
    """J14."""
    site, id = working_site, f"race-{uuid.uuid4()}"
    assert starting(site, STARTING, id).wait(60) == 0
    run = site.flows.get(id)
    assert run.result(60) == id
    assert site.marks(id) == [id]


def test_hundreds_of_runs_at_once(working_site: RunSite):
    site = working_site
    flow = site.workflow(lambda w, n: w.sleep(1000))
    count = 600 if site.home.database.dialect.name == "postgresql" else 100
    runs = site.start_many(flow, [{"n": n} for n in range(count)])
    assert len({run.id for run in runs}) == count
    assert sum(1 for _ in site.flows.all_runs(name=flow.name, status="running")) == count
    [[first]] = site.sql("SELECT min(id) FROM {event}")
    site.sql("UPDATE {event} SET due_at = 0 WHERE id < :some", some=first + 100)
    # Workers look when they hear of a timer.
    site.workflow(lambda w: w.sleep(0)).start()
    eventually(lambda: len(site.flows.runs(name=flow.name, status="succeeded")) == 100, 120)


def test_runs_of_one_key_follow_each_other(working_site: RunSite):
    site = working_site

    @site.workflow(concurrency_key="customer {who}")
    def flow(w: Any, who: str, n: int) -> Any:
        return w.step(site.tasks.slow.s(f"{who} {n}", 0.02), after=w.step(site.tasks.slow.s(f"{who} {n} first", 0.02)))

    runs = [flow.start(who=who, n=n) for n in range(4) for who in ("ann", "bob")]
    for run in runs:
        site.ended(run)
    for who in ("ann", "bob"):
        marks = [mark for mark in site.marks() if f" {who} " in mark]
        expected = [f"{word} {who} {n}{which}" for n in range(4) for which in (" first", "") for word in ("begin", "end")]
        assert marks == expected
    assert {run.status for run in runs} == {"succeeded"}


def test_a_run_of_a_key_that_is_cancelled_or_fails_lets_the_next_go_on(working_site: RunSite):
    site = working_site

    @site.workflow(concurrency_key="broken line")
    def flow(w: Any, n: int) -> Any:
        return w.step(
            site.tasks.fail.s(f"line {n}") if n == 1 else site.tasks.echo.s(n), after=w.wait_for("go", timeout=None)
        )

    runs = [flow.start(n=n) for n in range(4)]
    assert [run.status for run in runs] == ["running", "pending", "pending", "pending"]
    runs[2].cancel()
    for n in (0, 1, 3):
        runs[n].signal("go")
    for run in runs:
        site.ended(run)
    assert [run.status for run in runs] == ["succeeded", "failed", "cancelled", "succeeded"]


def test_what_would_never_follow_a_workflow_is_refused(working_site: RunSite):
    tasks = working_site.tasks
    for canvas in (
        chain(tasks.double_sum.s(x=1), tasks.echo.s()),
        chord([tasks.double_sum.s(x=1), tasks.add.s(1, 2)], tasks.total.s()),
    ):
        with pytest.raises(Exception, match="would never begin"):
            canvas.delay().get(timeout=60)


def test_a_workflow_is_started_by_its_task(working_site: RunSite):
    site = working_site
    by_delay = site.tasks.double_sum.delay(x=1, y=2)
    assert by_delay.get(timeout=60) == 6
    assert site.flows.get(by_delay.id).result(60) == 6
    stranger = Celery(
        "stranger", broker=site.app.conf.broker_url, backend=site.app.conf.result_backend, set_as_current=False
    )
    stranger.conf.broker_transport_options = site.app.conf.broker_transport_options
    by_name = stranger.send_task("double_sum", kwargs={"x": 2}, countdown=0.2)
    assert by_name.get(timeout=60) == 4
    bad = stranger.send_task("double_sum", kwargs={"unknown": 2})
    with pytest.raises(Exception, match="unknown"):
        bad.get(timeout=60)
    stranger.close()


def test_a_start_that_is_delivered_twice_is_one_run(working_site: RunSite):
    site, id = working_site, str(uuid.uuid4())
    for _ in range(2):
        site.tasks.marking.apply_async({"text": id}, task_id=id)
    assert site.app.AsyncResult(id).get(timeout=60) == id
    eventually(lambda: site.messages() == 0)
    assert site.marks(id) == [id]


def test_a_workflow_within_another(working_site: RunSite):
    site = working_site
    run = site.tasks.parent.start(x=4)
    assert run.result(60) == 10
    [child] = run.children()
    assert child.stored.record.root_id == run.id
    assert (child.result(1), child.stored.definition.name) == (10, "double_sum")
    assert of_each_step(run, "expanded") == {("double_sum", None): 1}


def test_a_schedule_starts_runs_that_do_not_overlap(working_site: RunSite):
    site = working_site
    schedules = Schedules(site.app)
    name = f"each-{uuid.uuid4()}"
    schedules.create(name, "waiting", 0.2, kwargs={"signal": name}, overlap="skip")
    beat = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.workflow.run_app", "beat", "-S", "sqlqueue", "--pidfile="],
        env=site.environment,
        cwd=site.directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        [first] = eventually(lambda: site.flows.runs(name="waiting", status="running"))
        eventually(lambda: sum(tick.outcome == "skipped" for tick in schedules.history(name, 100)) >= 2)
        assert len(site.flows.runs(name="waiting")) == 1
        site.flows.get(first.id).signal(name)
        eventually(lambda: len(site.flows.runs(name="waiting")) == 2)
    finally:
        beat.kill()
        beat.wait()
        schedules.delete(name)


def test_an_app_that_runs_tasks_where_they_are_called_is_refused(working_site: RunSite):
    site = working_site
    site.app.conf.task_always_eager = True
    try:
        with pytest.raises(WorkflowError, match="task_always_eager"):
            site.tasks.double_sum.start(x=1)
    finally:
        site.app.conf.task_always_eager = False


def test_another_database_is_refused(working_site: RunSite, tmp_path: Any):
    with Session(create_engine(f"sqlite:///{tmp_path}/other.db")) as session, pytest.raises(TransactionNotSupportedError):
        working_site.tasks.double_sum.options(connection=session).start(x=1)


def test_nothing_was_found_to_stand_still(working_site: RunSite):
    assert working_site.flows.reconcile(quiet_for=timedelta(0)) == []


def test_what_is_refused_by_the_builder_never_begins(make_run_site: Callable[..., RunSite]):
    site = make_run_site()
    with pytest.raises(WorkflowError, match="no task is called"):
        site.run(site.app.signature("nobody.knows"))
