"""Random workflows in a hostile world, told to a store in memory and to one in SQL alike."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from celery_workflow.engine.events import CancelRequested, RerunRequested, RetryRequested
from celery_workflow.errors import InvalidTransitionError
from celery_workflow.sql.runs import SQLRunStore
from celery_workflow.sql.schema import Tables
from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.sql.database import Database

from .conftest import empty
from .graphs import Plan, plans
from .simulation import Simulation
from .test_properties import SEEDS, examples
from .twins import Twins


@examples(8)
@given(plan=plans(), seed=SEEDS)
def test_both_stores_come_to_the_same(
    database: Database, tables: Tables, runs: SQLRunStore, clock: FakeClock, plan: Plan, seed: int
):
    empty(database, tables)
    simulation = Simulation(plan, seed, store=Twins(runs, clock)).to_the_end()
    for run_id in simulation.store.runs:
        simulation.store.compare(run_id)


@examples(6)
@given(
    plan=plans(),
    seed=SEEDS,
    requests=st.lists(st.sampled_from(["cancel", "retry", "rerun", "step"]), min_size=1, max_size=4),
)
def test_both_stores_come_to_the_same_whatever_people_ask_for(
    database: Database,
    tables: Tables,
    runs: SQLRunStore,
    clock: FakeClock,
    plan: Plan,
    seed: int,
    requests: list[str],
):
    """At any moment: what is refused is refused by both."""
    empty(database, tables)
    twins = Twins(runs, clock)
    simulation = Simulation(plan, seed, store=twins)
    for request in requests:
        for _ in range(simulation.random.randrange(12)):
            simulation.step()
        epoch, first = twins.get("run").run.epoch, plan.definition.main[0].name
        event = {
            "cancel": CancelRequested(at=twins.now, reason="asked"),
            "retry": RetryRequested(at=twins.now, epoch=epoch),
            "rerun": RerunRequested(at=twins.now, epoch=epoch, scope="all"),
            "step": RerunRequested(at=twins.now, epoch=epoch, step=first, scope="step"),
        }[request]
        with suppress(InvalidTransitionError):
            simulation.give("run", event)
    simulation.to_the_end()
    for run_id in twins.runs:
        twins.compare(run_id)
