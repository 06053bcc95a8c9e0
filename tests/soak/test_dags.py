"""Random workflows on real workers that are killed: each ends as one in a quiet world does, with each outcome once."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from celery_workflow import Run
from celery_workflow.engine.definition import Role, Wait
from celery_workflow.engine.states import StepState
from celery_workflow.runs.store import NewRun
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..celery.workers import Worker, eventually
from ..databases import migrate
from ..servers import started_server
from ..workflow.apps import wipe_all
from ..workflow.graphs import Plan, expected, plans
from ..workflow.run_sites import RunSite
from ..workflow.simulation import Simulation
from .dag_tasks import MOST_STEPS, quick

DATABASES = ["postgresql"]
POOLS = (("-P", "prefork", "-c2"), ("-P", "threads", "-c4"))
#: A step may be lost as often as it takes.
PATIENT = {"options": {"max_reclaims": 1000}}


def drawn(count: int, most: int) -> list[Plan]:
    """So many plans, the same each time."""
    found: list[Plan] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(plans(fail_fast=False, most=most))
    def collect(plan: Plan) -> None:
        found.append(plan)

    collect()
    return found[:count]


def start(site: RunSite, given_plans: list[Plan]) -> dict[Run, Plan]:
    """A run of each, with the signals that it waits for."""
    new = [NewRun(id=str(uuid.uuid4()), definition=quick(plan)) for plan in given_plans]
    runs = dict(zip(site.flows.start_many(new), given_plans, strict=True))
    for run, plan in runs.items():
        for step in plan.definition.main:
            if isinstance(step.action, Wait):
                run.signal(step.action.signal, "yes", id=f"id-{step.name}")
    return runs


def work(
    site: RunSite,
    runs: dict[Run, Plan],
    *,
    every: float,
    kills: int,
    patience: float,
    then: Callable[[], Any] = lambda: None,
) -> int:
    """Kill a worker every few seconds until all runs are over, or so often; how often that was. In the middle do `then`."""
    chosen = random.Random(1)
    workers: list[Worker] = [site.worker(*pool) for pool in POOLS]
    until, done = time.monotonic() + patience, 0
    while not all(run.stored.record.state.is_over for run in runs):
        assert time.monotonic() < until, [(run.id, run.status, dict(run.progress())) for run in runs if not _is_over(run)]
        time.sleep(every)
        if done < kills:
            slot = chosen.randrange(len(POOLS))
            workers[slot].kill()
            workers[slot] = site.worker(*POOLS[slot], wait=False)
            done += 1
            if done == kills // 2:
                then()
    return done


def _is_over(run: Run) -> bool:
    return run.stored.record.state.is_over


def check(site: RunSite, runs: dict[Run, Plan]) -> None:
    """All is as the rules say, and as in memory; nothing is left."""
    for run, plan in runs.items():
        quiet = Simulation(plan, 1, hostile=False).to_the_end().run
        steps = run.steps()
        states = {step.name: steps[step.name].status for step in plan.definition.main}
        assert states == expected(plan), (run.id, plan)
        assert run.status == str(quiet.run.state), (run.id, plan)
        succeeded = [step.name for step in plan.definition.main if states[step.name] == "succeeded"]
        results = quiet.results(succeeded)
        for name in succeeded:
            assert run.step_result(name) == results[name], (run.id, name, plan)
        _check_outcomes(run, plan)
    eventually(lambda: site.messages() == 0)
    assert site.flows.reconcile() == []
    assert site.flows.runs(status=["running", "stopping", "compensating", "pending"]) == []


def _check_outcomes(run: Run, plan: Plan) -> None:
    """Each step came to its end once, each undoing too."""
    over = {str(state) for state in StepState if state.is_over}
    ends = Counter((entry.name, entry.index) for entry in run.journal() if entry.name and entry.state in over)
    assert set(ends.values()) <= {1}, (run.id, ends)
    mains = {step.name for step in plan.definition.steps if step.role is Role.MAIN}
    assert mains <= {name for name, _ in ends}


@pytest.mark.timeout(200)
def test_twelve_random_workflows_whose_workers_are_killed(database_options: DatabaseOptions, tmp_path: Path):
    site = RunSite(database_options, tmp_path, **PATIENT)
    site.worker = _of_dags(site.worker)  # type: ignore[method-assign]
    try:
        runs = start(site, drawn(12, 15))
        assert work(site, runs, every=2, kills=3, patience=150) > 0
        check(site, runs)
    finally:
        site.close()
        wipe_all(site.app)
        process_for(database_options).close()


def _of_dags(worker: Callable[..., Worker]) -> Callable[..., Worker]:
    return lambda *arguments, **options: worker(*arguments, app="tests.soak.dag_tasks", **options)


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[tuple[RunSite, Any]]:
    """A deployment on a server of its own, to be restarted."""
    with started_server() as server:
        server.start()
        options = DatabaseOptions(server.url.replace("postgresql://", "postgresql+psycopg://"))
        migrate(options)
        site = RunSite(options, tmp_path, **PATIENT)
        site.worker = _of_dags(site.worker)  # type: ignore[method-assign]
        try:
            yield site, server
        finally:
            site.close()
            process_for(options).close()


@pytest.mark.soak
@pytest.mark.timeout(4000)
def test_two_hundred_random_workflows_and_a_database_that_crashes(own_site: tuple[RunSite, Any]):
    """A worker is killed every two seconds, and PostgreSQL once."""
    site, server = own_site

    def crash() -> None:
        server.stop("immediate")
        server.start()

    runs = start(site, drawn(200, MOST_STEPS))
    began_at = time.monotonic()
    kills = work(site, runs, every=2, kills=60, patience=3000, then=crash)
    took = time.monotonic() - began_at
    steps = sum(run.progress()["total"] for run in runs)
    print(f"{len(runs)} runs of {steps} steps and items, {kills} kills, one crash of the database, {took:.0f} s")
    check(site, runs)
