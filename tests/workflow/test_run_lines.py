"""Runs of one concurrency key follow each other in the order in which they came."""

from __future__ import annotations

from datetime import timedelta

import pytest

from celery_workflow.engine.definition import Definition, Gather, Step
from celery_workflow.engine.events import CancelRequested, RerunRequested, RetryRequested, SignalReceived
from celery_workflow.engine.records import Key
from celery_workflow.engine.states import RunState
from celery_workflow.errors import InvalidTransitionError
from celery_workflow.runs.store import NewRun

from .graphs import task
from .worlds import World

PENDING, RUNNING, SUCCEEDED, FAILED = RunState.PENDING, RunState.RUNNING, RunState.SUCCEEDED, RunState.FAILED


def keyed(world: World, *ids: str, key: str = "k") -> None:
    for each in ids:
        world.start(task("s"), id=each, concurrency_key=key)


def states(world: World, *ids: str) -> list[RunState]:
    return [world.state(each) for each in ids]


def cancel(world: World, run_id: str) -> None:
    world.give(CancelRequested(at=world.clock.now()), run_id)


def test_one_at_a_time_first_come_first_served(world: World):
    keyed(world, "a", "b", "c")
    keyed(world, "other", key="another")
    assert states(world, "a", "b", "c", "other") == [RUNNING, PENDING, PENDING, RUNNING]
    [turn] = world.succeed("s", run_id="a").due
    assert states(world, "b", "c") == [PENDING, PENDING]
    assert world.store.due(10) == [turn]
    world.deliver_all()
    assert states(world, "b", "c") == [RUNNING, PENDING]
    world.fail_run("b")
    world.deliver_all()
    world.succeed("s", run_id="c")
    assert states(world, "a", "b", "c") == [SUCCEEDED, FAILED, SUCCEEDED]


def test_several_keys_in_one_call(world: World):
    definition = Definition(name="w", steps=(task("s"),))
    new = [NewRun(id=f"{key}{number}", definition=definition, concurrency_key=key) for number in (1, 2) for key in "ba"]
    created = world.store.create(new, world.effects)

    assert [written.decision.run.state for written in created if written] == [RUNNING, RUNNING, PENDING, PENDING]


def test_who_waits_and_is_cancelled_leaves_the_line(world: World):
    keyed(world, "a", "b", "c")
    cancel(world, "b")
    world.succeed("s", run_id="a")
    world.deliver_all()
    assert states(world, "a", "b", "c") == [SUCCEEDED, RunState.CANCELLED, RUNNING]


def test_whose_turn_it_is_and_who_is_cancelled_before_passes_it_on(world: World):
    keyed(world, "a", "b", "c")
    world.succeed("s", run_id="a")
    cancel(world, "b")
    world.deliver_all()
    assert states(world, "b", "c") == [RunState.CANCELLED, RUNNING]


def test_a_run_that_starts_later_takes_its_place_then(world: World):
    world.start(task("s"), id="late", concurrency_key="k", start_at=world.clock.now() + 5_000_000)
    keyed(world, "a")
    assert states(world, "late", "a") == [PENDING, RUNNING]
    world.after(5)
    keyed(world, "b")
    assert world.state("late") is PENDING
    world.succeed("s", run_id="a")
    world.deliver_all()
    assert states(world, "late", "b") == [RUNNING, PENDING]
    world.start(task("s"), id="free", concurrency_key="another", start_at=world.clock.now() + 5_000_000)
    world.after(5)
    assert world.state("free") is RUNNING


def test_a_retry_waits_at_the_end_of_the_line(world: World):
    keyed(world, "a", "b", "c")
    world.fail_run("a")
    written = world.give(RetryRequested(at=world.clock.now(), epoch=1), "a")
    assert written.decision.run is not None
    assert (written.decision.run.state, world.store.get("a").record.epoch) == (PENDING, 1)
    assert world.give(RetryRequested(at=world.clock.now(), epoch=1), "a").decision.ignored
    for done in ("b", "c"):
        world.deliver_all()
        assert states(world, "a", done) == [PENDING, RUNNING]
        world.succeed("s", run_id=done)
    world.deliver_all()
    assert (world.state("a"), world.store.get("a").record.epoch) == (RUNNING, 2)
    world.succeed("s", run_id="a")
    assert world.state("a") is SUCCEEDED


def test_a_retry_of_whose_key_is_free_begins_at_once_and_others_wait(world: World):
    keyed(world, "a")
    world.fail_run("a")
    world.give(RetryRequested(at=world.clock.now(), epoch=1), "a")
    keyed(world, "b")
    assert states(world, "a", "b") == [RUNNING, PENDING]
    with pytest.raises(InvalidTransitionError):
        world.give(RetryRequested(at=world.clock.now(), epoch=2), "a")


def test_a_rerun_that_has_waited_forgets_memos_when_it_begins(world: World):
    keyed(world, "a", "b")
    world.store.keep_memo("a", Key("s"), "m", 1)
    world.succeed("s", run_id="a")
    world.give(RerunRequested(at=world.clock.now(), epoch=1, scope="all"), "a")
    assert world.store.memo("a", Key("s"), "m") == (True, 1)
    world.deliver_all()
    world.succeed("s", run_id="b")
    world.deliver_all()
    assert world.state("a") is RUNNING
    assert world.store.memo("a", Key("s"), "m") == (False, None)


def test_a_turn_that_was_given_before_a_cancel_admits_no_later_retry(world: World):
    keyed(world, "a", "b", "c")
    world.succeed("s", run_id="a")
    cancel(world, "b")
    world.give(RetryRequested(at=world.clock.now(), epoch=1), "b")
    world.deliver_all()
    assert states(world, "b", "c") == [PENDING, RUNNING]


def test_a_run_that_ends_as_it_begins_passes_the_key_on(world: World):
    gathers = Definition(name="w", steps=(Step(name="g", action=Gather(value=1)),), result=None)
    world.store.create([NewRun(id=str(each), definition=gathers, concurrency_key="k") for each in range(3)], world.effects)
    world.deliver_all()
    assert states(world, "0", "1", "2") == [SUCCEEDED, SUCCEEDED, SUCCEEDED]
    keyed(world, "next")
    assert world.state("next") is RUNNING


def test_nothing_is_left_of_a_line_that_is_empty(world: World):
    keyed(world, "a", "b")
    world.succeed("s", run_id="a")
    world.give(SignalReceived(at=0, id="1", name="x"), "b")
    world.deliver_all()
    world.succeed("s", run_id="b")
    world.clock.advance(timedelta(days=1))
    assert world.store.prune(older_than=timedelta(hours=1), limit=10) == 2
    assert [world.count(table) for table in ("line", "waiter", "event", "run")] == [0, 0, 0, 0]
