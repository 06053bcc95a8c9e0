"""Processes and databases that die while steps run: each outcome is there once, and each run ends."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_workflow import Run
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..celery.workers import Worker, eventually
from ..databases import migrate
from ..servers import started_server
from .run_sites import RunSite, of_each_step

DATABASES = ["postgresql"]
#: Seconds.
LEASE = 3.0


def succeeded_once(site: RunSite, run: Run, *steps: str) -> None:
    """It has ended well, and each of its steps did so once."""
    site.ended(run)
    assert run.status == "succeeded", run.stored.record.error
    assert of_each_step(run) == {(step, None): 1 for step in steps}
    eventually(lambda: site.messages() == 0)


@pytest.mark.parametrize(
    "pool", [("prefork", "-c2"), ("threads", "-c2"), ("solo", "-c1"), ("gevent", "-c4")], ids=lambda p: p[0]
)
def test_each_pool_runs_workflows(make_run_site: Callable[..., RunSite], pool: tuple[str, ...]):
    site = make_run_site()
    site.worker("-P", *pool)

    @site.workflow
    def flow(w: Any) -> Any:
        parts = w.map(site.tasks.add, [[1, 2], [3, 4], [5, 6]], star=True)
        kept = w.step(site.tasks.quiet.s("kept"), after=parts)
        again = w.step(site.tasks.retried.s(1), after=kept)
        return [w.step(site.tasks.total.s(parts)), w.step(site.tasks.flaky.s("pool", 1), retry=2), again]

    bad = site.run(site.tasks.fail.s("bad"))
    assert flow.start().result(60) == [21, "pool", [3, 20, 2]]
    assert site.ended(bad).stored.record.error.message == "bad"
    eventually(lambda: site.messages() == 0)


@pytest.fixture
def site(make_run_site: Callable[..., RunSite]) -> RunSite:
    """Three losses are too many."""
    return make_run_site(options={"max_reclaims": 2})


def test_a_step_whose_process_dies_is_run_again_however_it_is_acked(site: RunSite):
    site.worker("-c2")
    runs = {task: site.run(getattr(site.tasks, task).s(task, 1), site.tasks.echo.s("after")) for task in ("die", "die_late")}
    spent = {task: site.run(getattr(site.tasks, task).s(f"spent {task}", 99)) for task in ("die", "die_late")}
    for task, run in runs.items():
        succeeded_once(site, run, task, "echo")
        assert site.marks(task) == [task] * 2
    for task, run in spent.items():
        site.ended(run)
        assert (run.status, run.stored.record.error.type) == ("failed", "WorkerLostError")
        assert len(site.marks(f"spent {task}")) == 3
    exits = site.ended(site.run(site.tasks.exits.s()))
    assert (exits.status, exits.stored.record.error.type) == ("failed", "WorkerLostError")
    eventually(lambda: site.messages() == 0)


def test_a_memo_survives_its_process(site: RunSite):
    site.worker()
    run = site.run(site.tasks.memoised.s(2))
    assert run.result(60) == [1, [1, {"a": None}], 1]
    assert len(site.marks("drawn")) == 1
    assert len(site.marks("after memo")) == 3


@pytest.mark.parametrize("task", ["slow", "slow_late"])
def test_a_worker_that_is_killed_during_a_step_leaves_it_to_others(site: RunSite, task: str):
    first = site.worker()
    run = site.run(getattr(site.tasks, task).s("work", 2), site.tasks.note.s("after"))
    eventually(lambda: site.marks("begin work"))
    first.kill()
    site.worker()
    succeeded_once(site, run, task, "note")
    assert len(site.marks("begin work")) == 2
    assert site.marks("after") == ["after"]


def test_a_worker_that_is_stopped_for_longer_than_its_lease_gives_no_second_outcome(site: RunSite):
    gate = site.directory / "gate"
    first = site.worker()
    run = site.run(site.tasks.gated.s("work", str(gate)), site.tasks.note.s("after"))
    eventually(lambda: site.marks("begin work"))
    first.signal_group(signal.SIGSTOP)
    site.worker()
    eventually(lambda: len(site.marks("begin work")) == 2)
    gate.touch()
    succeeded_once(site, run, "gated", "note")
    first.signal_group(signal.SIGCONT)
    eventually(lambda: len(site.marks("end work")) == 2)
    assert site.run(site.tasks.note.s("next")).result(60) == "next"
    assert of_each_step(run) == {("gated", None): 1, ("note", None): 1}
    assert site.marks("after") == ["after"]


class CrashPoint:
    """Holds whoever writes the outcome of a step of this name: before the row is written, or right before the commit."""

    def __init__(self, site: RunSite, step: str, *, at_commit: bool) -> None:
        self._site = site
        schema = site.database.schema
        kind = "CONSTRAINT TRIGGER" if at_commit else "TRIGGER"
        later = "DEFERRABLE INITIALLY DEFERRED" if at_commit else ""
        self._lock = random.getrandbits(31)
        self._holder = site.home.database.engine.connect()
        self._holder.exec_driver_sql(f"SELECT pg_advisory_lock({self._lock})")
        self._holder.commit()
        held = f"NEW.name = '{step}' AND NEW.state = 'succeeded'"
        holding = f"BEGIN IF {held} THEN PERFORM pg_advisory_lock_shared({self._lock}); END IF; RETURN NEW; END"
        self._do(f"CREATE FUNCTION {schema}.hold() RETURNS trigger LANGUAGE plpgsql AS $$ {holding} $$")
        when = f"AFTER INSERT ON {schema}.workflow_journal {later} FOR EACH ROW"
        self._do(f"CREATE {kind} hold {when} EXECUTE FUNCTION {schema}.hold()")

    def wait(self) -> int:
        """The backend of who is held."""
        asked = (
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = "
            f"{self._lock} AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        rows = eventually(lambda: self._site.home.database.run(lambda tx: tx.exec_driver_sql(asked).all()))
        return int(rows[0].pid)

    def cut(self, pid: int) -> None:
        """The server ends that session; whoever has it hears of it."""
        self._do(f"SELECT pg_terminate_backend({pid})")

    def remove(self) -> None:
        """Let go who is held, if anybody."""
        if self._holder.closed:
            return
        schema = self._site.database.schema
        self._holder.exec_driver_sql(f"SELECT pg_advisory_unlock({self._lock})")
        self._holder.commit()
        self._holder.close()
        self._do(f"DROP FUNCTION IF EXISTS {schema}.hold() CASCADE")

    def _do(self, statement: str) -> None:
        self._site.home.database.run(lambda tx: tx.exec_driver_sql(statement))


@pytest.fixture
def hold(site: RunSite) -> Iterator[Callable[..., CrashPoint]]:
    with ExitStack() as stack:

        def make(step: str, *, at_commit: bool) -> CrashPoint:
            point = CrashPoint(site, step, at_commit=at_commit)
            stack.callback(point.remove)
            return point

        yield make


@pytest.mark.parametrize("at_commit", [False, True], ids=["after the effect", "at the commit"])
def test_a_worker_that_dies_while_it_writes_an_outcome(site: RunSite, hold: Callable[..., CrashPoint], at_commit: bool):
    """Nothing of it is there; another does the step again."""
    point = hold("note", at_commit=at_commit)
    first = site.worker()
    run = site.run(site.tasks.note.s("work"), site.tasks.echo.s("after"))
    pid = point.wait()
    first.kill()
    # The server would notice once it is to answer: what it holds until then others wait for.
    point.cut(pid)
    point.remove()
    site.worker()
    succeeded_once(site, run, "note", "echo")
    assert len(site.marks("work")) == 2


def test_a_session_that_ends_at_the_commit_is_repeated(site: RunSite, hold: Callable[..., CrashPoint]):
    point = hold("note", at_commit=True)
    site.worker()
    run = site.run(site.tasks.note.s("work"), site.tasks.echo.s("after"))
    point.cut(point.wait())
    point.cut(point.wait())
    point.remove()
    succeeded_once(site, run, "note", "echo")
    assert site.marks("work") == ["work"]


def test_a_worker_that_dies_after_the_commit(site: RunSite):
    """The parent never hears of the end: the message is gone, nothing is run again."""
    first = site.worker()
    gate = site.directory / "gate"
    run = site.run(site.tasks.gated.s("work", str(gate)), site.tasks.echo.s("after").set(queue="elsewhere"))
    eventually(lambda: site.marks("begin work"))
    parent = first.process.pid
    os.kill(parent, signal.SIGSTOP)
    gate.touch()
    eventually(lambda: run.steps()["gated"].status == "succeeded")
    first.kill()
    site.worker("-Q", "celery,elsewhere")
    succeeded_once(site, run, "gated", "echo")
    assert site.marks("begin work") == ["begin work"]


def test_a_child_whose_parent_dies_still_gives_its_outcome(site: RunSite):
    """And whoever takes the step over meanwhile gives none."""
    first = site.worker()
    gate = site.directory / "gate"
    run = site.run(site.tasks.gated.s("work", str(gate)), site.tasks.note.s("after"))
    eventually(lambda: site.marks("begin work"))
    [child] = psutil.Process(first.process.pid).children()
    child.suspend()
    first.signal(signal.SIGKILL)
    first.process.wait()
    child.resume()
    site.worker()
    gate.touch()
    succeeded_once(site, run, "gated", "note")
    assert site.marks("after") == ["after"]


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[tuple[RunSite, Any]]:
    """A deployment on a server of its own."""
    with started_server(fsync="off") as server:
        server.start()
        options = DatabaseOptions(server.url.replace("postgresql://", "postgresql+psycopg://"))
        migrate(options)
        site = RunSite(options, tmp_path)
        try:
            yield site, server
        finally:
            site.close()
            process_for(options).close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_database_that_is_restarted_during_a_step(own_site: tuple[RunSite, Any], mode: str):
    site, server = own_site
    gate = site.directory / "gate"
    site.worker()
    run = site.run(site.tasks.gated.s("work", str(gate)), site.tasks.note.s("after"))
    nap = site.workflow(lambda w: w.step(site.tasks.echo.s(1), after=w.sleep(0.5))).start()
    eventually(lambda: site.marks("begin work"))
    server.stop(mode)
    gate.touch()
    eventually(lambda: site.marks("end work"))
    server.start()
    succeeded_once(site, run, "gated", "note")
    assert site.marks("begin work") == ["begin work"]
    assert nap.result(60) == 1


def test_two_workers_take_turns(site: RunSite):
    """Whoever is there goes on with what others have begun."""
    workers: list[Worker] = [site.worker()]
    run = site.run(*[site.tasks.slow.s(f"part {n}", 0.4) for n in range(6)])
    for n in (1, 3):
        eventually(lambda n=n: site.marks(f"begin part {n}"))
        workers[-1].kill()
        workers.append(site.worker())
    succeeded_once(site, run, "slow", *[f"slow-{n}" for n in range(2, 7)])
