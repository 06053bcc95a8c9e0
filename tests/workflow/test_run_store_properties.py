"""Random workflows in a hostile world, told to a store in memory and to one in SQL alike."""

from __future__ import annotations

from hypothesis import given

from celery_workflow.sql.runs import SQLRunStore
from celery_workflow.sql.schema import Tables
from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.sql.database import Database

from .conftest import empty
from .graphs import Plan, plans
from .simulation import Simulation
from .test_properties import SEEDS, examples
from .twins import Twins


@examples(25)
@given(plan=plans(), seed=SEEDS)
def test_both_stores_come_to_the_same(
    database: Database, tables: Tables, runs: SQLRunStore, clock: FakeClock, plan: Plan, seed: int
):
    empty(database, tables)
    simulation = Simulation(plan, seed, store=Twins(runs, clock)).to_the_end()
    for run_id in simulation.store.runs:
        simulation.store.compare(run_id)
