"""Random workflows in a hostile world: whatever the order, the duplicates and the crashes, the end is the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_workflow.engine.codec import from_json, to_json
from celery_workflow.engine.definition import Definition, Wait
from celery_workflow.engine.events import CancelRequested, RerunRequested, RetryRequested, SignalReceived
from celery_workflow.engine.policies import Otherwise
from celery_workflow.engine.records import Key
from celery_workflow.engine.states import RunState, StepState

from .graphs import Plan, expected, plans
from .simulation import Simulation

SEEDS = st.integers(0, 2**32)


def examples(number: int) -> Callable[[Any], Any]:
    """So many random cases; WORKFLOW_SOAK in the environment multiplies them."""
    times = int(os.environ.get("WORKFLOW_SOAK", "1"))
    return settings(max_examples=number * times, deadline=None, suppress_health_check=list(HealthCheck))


@examples(40)
@given(plans(fail_fast=False), SEEDS, SEEDS)
def test_every_order_of_things_leads_to_the_states_that_the_rules_say(plan: Plan, one: int, other: int):
    first = Simulation(plan, one).to_the_end()
    second = Simulation(plan, other).to_the_end()

    assert first.states() == expected(plan)
    assert second.states() == first.states()
    assert second.run.run.state is first.run.run.state
    assert second.run.results(["$run"]) == first.run.results(["$run"])


@examples(40)
@given(plans(failing=False), SEEDS)
def test_mishaps_change_nothing_about_a_run_that_no_task_fails(plan: Plan, seed: int):
    quiet = Simulation(plan, seed, hostile=False).to_the_end()
    loud = Simulation(plan, seed + 1).to_the_end()

    if quiet.run.run.state is RunState.SUCCEEDED:
        assert loud.run.results(["$run"]) == quiet.run.results(["$run"])
        assert loud.states() == quiet.states()
    assert loud.run.run.state is quiet.run.run.state


@examples(40)
@given(plans(fail_fast=True), SEEDS)
def test_a_run_that_stops_at_its_first_failure_leaves_nothing_open(plan: Plan, seed: int):
    simulation = Simulation(plan, seed).to_the_end()

    run = simulation.run.run
    assert run.state.is_over
    assert simulation.store.messages == {}
    assert (run.state is RunState.SUCCEEDED) == (run.bad == 0)
    assert all(row.state.is_over for row in simulation.run.rows.values() if row.state is not StepState.PENDING)


@examples(40)
@given(plans(), SEEDS)
def test_what_succeeded_is_undone_newest_first_if_the_run_fails(plan: Plan, seed: int):
    simulation = Simulation(plan, seed).to_the_end()

    rows = simulation.run.rows
    undoing = plan.definition.compensations
    done = [rows[Key(name)] for name in undoing if Key(name) in rows and rows[Key(name)].state is StepState.SUCCEEDED]
    newest_first = [f"{undoing[row.name]}:None" for row in sorted(done, key=lambda row: -(row.order or 0))]
    undone = [name for name in simulation.begun if name.startswith("undo_")]
    assert undone == ([] if simulation.run.run.state is RunState.SUCCEEDED else newest_first)


@examples(40)
@given(plans(), SEEDS, st.integers(0, 30))
def test_a_cancel_at_any_moment_ends_the_run_and_its_children(plan: Plan, seed: int, moment: int):
    simulation = Simulation(plan, seed)
    for _ in range(moment):
        simulation.step()
    was_over = simulation.run.run.state.is_over or simulation.run.run.ending is not None
    simulation.give("run", CancelRequested(at=simulation.store.now))
    simulation.to_the_end()

    states = {run.run.state for run in simulation.store.runs.values()}
    assert all(state.is_over for state in states)
    assert was_over or simulation.run.run.state in (RunState.CANCELLED, RunState.SUCCEEDED)
    assert simulation.store.messages == {}


@examples(40)
@given(plans(compensated=False), SEEDS)
def test_a_retry_after_the_bug_is_mended_ends_as_if_there_had_been_none(plan: Plan, seed: int):
    simulation = Simulation(plan, seed).to_the_end()
    simulation.failing = False
    if simulation.run.run.state is RunState.SUCCEEDED:
        return
    before = dict(simulation.run.rows)
    simulation.give("run", RetryRequested(at=simulation.store.now, epoch=1))
    simulation.to_the_end()

    kept = [row for row in before.values() if row.state is StepState.SUCCEEDED and row.index is None]
    assert all(simulation.run.rows[row.key] == row for row in kept if row.name in plan.definition.followers)
    failed = {row.name for row in simulation.run.rows.values() if row.state is StepState.FAILED and row.index is None}
    # What still fails does so by its own condition, not for a task.
    assert all(plan.definition.by_name[name].on_unmet is Otherwise.FAIL for name in failed)


@examples(40)
@given(plans(), SEEDS, st.data())
def test_a_rerun_of_any_scope_comes_to_an_end(plan: Plan, seed: int, data: st.DataObject):
    simulation = Simulation(plan, seed).to_the_end()
    for epoch in (1, 2):
        step = data.draw(st.sampled_from([step.name for step in plan.definition.main]))
        scope = data.draw(st.sampled_from(["step", "downstream", "all"]))
        event = RerunRequested(at=simulation.store.now, epoch=epoch, step=step, scope=scope)
        simulation.give("run", event)
        for wait in plan.definition.main:
            if isinstance(wait.action, Wait):
                signal = SignalReceived(at=0, id=f"{epoch}-{wait.name}", name=wait.action.signal, payload="again")
                simulation.store.posts.append(("run", signal))
        simulation.to_the_end()

        assert simulation.run.run.state.is_over
        assert simulation.run.run.epoch == epoch + 1


@examples(40)
@given(plans())
def test_a_definition_survives_json_and_keeps_its_fingerprint(plan: Plan):
    again: Definition = from_json(to_json(plan.definition))

    assert again == plan.definition
    assert (again.fingerprint, again.digest) == (plan.definition.fingerprint, plan.definition.digest)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans(), SEEDS, SEEDS)
def test_soak_of_random_runs(plan: Plan, one: int, other: int):
    first = Simulation(plan, one).to_the_end()
    second = Simulation(plan, other).to_the_end()

    assert first.run.run.state.is_over
    if not plan.definition.fail_fast:
        assert first.states() == second.states() == expected(plan)
