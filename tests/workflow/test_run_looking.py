"""What the store of runs tells of them, on each database."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from celery_workflow.engine.definition import Call, Definition, Map, OnItemError, Role, Sleep, Step, Wait
from celery_workflow.engine.events import CancelRequested, SignalReceived, StepSucceeded
from celery_workflow.engine.invariants import faults
from celery_workflow.engine.journal import fold, picture_of
from celery_workflow.engine.records import Key
from celery_workflow.engine.states import RunState
from celery_workflow.engine.values import Ref
from celery_workflow.runs.store import TOPIC, NewRun, Query
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.waiters import SQLWaiters

from ..databases import requires
from .graphs import child_of, task
from .worlds import World


def found(world: World, *, before: int | None = None, limit: int = 100, **conditions: Any) -> list[str]:
    return [listed.id for listed in world.store.find(Query(**conditions), before=before, limit=limit)]


def test_runs_are_found_by_what_is_known_of_them(world: World):
    world.start(definition=Definition(name="pay", version=3, steps=(task("s"),)), id="a", labels={"x": "1", "y": "2"})
    world.start(task("s"), id="b", labels={"x": "1"}, tenant="t")
    world.start(Step(name="nap", action=Sleep(seconds=9)), id="c")
    world.start(Step(name="word", action=Wait(signal="go")), task("s"), id="d")
    world.fail("s", run_id="b")
    world.succeed("s", run_id="a")

    assert found(world) == ["d", "c", "b", "a"]
    assert found(world, states=[RunState.FAILED, RunState.SUCCEEDED]) == ["b", "a"]
    assert found(world, workflow="pay") == ["a"]
    assert found(world, labels={"x": "1"}) == ["b", "a"]
    assert found(world, labels={"x": "1", "y": "2"}) == ["a"]
    assert found(world, labels={"x": "1"}, states=[RunState.FAILED], tenant="t", failed_step="s") == ["b"]
    assert found(world, labels={"x": "2"}) == found(world, tenant="other") == found(world, failed_step="nap") == []
    assert found(world, waiting="timer") == ["c"]
    assert found(world, waiting="signal") == ["d"]


def test_what_a_listing_says(world: World):
    world.start(definition=Definition(name="pay", version=3, steps=(task("s"),)), id="a", labels={"x": "1"}, tenant="t")
    world.clock.advance(timedelta(seconds=1))
    world.fail("s")
    [listed] = world.store.find(Query())

    assert (listed.id, listed.workflow, listed.version, listed.state) == ("a", "pay", 3, RunState.FAILED)
    assert (listed.labels, listed.tenant, listed.failed_step, listed.error) == ({"x": "1"}, "t", "s", "Planned: ")
    assert (
        listed.finished_at
        == world.clock.now()
        == (listed.created_at or 0) + 1_000_000
        == (listed.started_at or 0) + 1_000_000
    )


def test_pages_of_a_listing_follow_each_other(world: World):
    definition = Definition(name="w", steps=(task("s"),))
    world.store.create([NewRun(id=str(number), definition=definition) for number in range(7)], world.effects)
    pages: list[list[str]] = []
    before: int | None = None
    while page := world.store.find(Query(), before=before, limit=3):
        pages.append([listed.id for listed in page])
        before = page[-1].number
    assert pages == [["6", "5", "4"], ["3", "2", "1"], ["0"]]


def test_a_journal_is_read_in_pages_and_tells_what_the_rows_say(world: World):
    world.start(task("a"), task("b", Ref("a")))
    world.succeed("a", 1)
    world.fail("b")
    first = world.store.journal("run", limit=3)
    rest = world.store.journal("run", after=first[-1][0])
    entries = [entry for _, entry in [*first, *rest]]

    assert entries == [entry for _, entry in world.store.journal("run")]
    stored, rows = world.store.whole("run")
    assert fold(entries) == picture_of(stored.record, rows.values())
    assert faults(stored.definition, stored.record, rows) == []


def test_the_newest_errors_come_oldest_first(world: World):
    world.start(Step(name="m", action=Map(call=Call(task="tasks.m"), items=[1, 2, 3], on_error=OnItemError.SKIP)))
    for index in range(3):
        world.fail("m", index=index, error=f"E{index}")
    assert [entry.error.type for entry in world.store.errors("run") if entry.error] == ["E0", "E1", "E2"]
    assert [entry.error.type for entry in world.store.errors("run", newest=2) if entry.error] == ["E1", "E2"]


def test_progress_counts_steps_and_items(world: World):
    items = Map(call=Call(task="tasks.m"), items=Ref("a"), max_parallel=2)
    world.start(
        task("a"), Step(name="m", action=items), task("z", Ref("m")), task("undo", role=Role.COMPENSATION, of=("a",))
    )
    assert world.store.progress("run") == {"sent": 1, "pending": 2}
    world.succeed("a", list(range(600)))
    assert world.store.progress("run") == {"succeeded": 1, "sent": 2, "pending": 599}
    world.succeed("m", index=0)
    assert world.store.progress("run") == {"succeeded": 2, "sent": 2, "pending": 598}


def test_progress_of_a_run_that_has_not_begun(world: World):
    world.start(task("a"), task("b"), start_at=world.clock.now() + 1)
    assert world.store.progress("run") == {"pending": 2}
    assert world.store.steps("run") == []
    assert world.store.whole("run")[1] == {}


def test_items_are_read_in_pages(world: World):
    world.start(Step(name="m", action=Map(call=Call(task="tasks.m"), items=[["x", n] for n in range(5)])))
    assert [item.value for item in world.store.items("run", "m")] == [["x", n] for n in range(5)]
    assert [item.index for item in world.store.items("run", "m", after=1, limit=2)] == [2, 3]
    assert [step.name for step in world.store.steps("run")] == ["m"]


def test_results_of_more_steps_than_one_query_asks_for(world: World):
    gathered = [task(f"s{number}") for number in range(1100)]
    world.start(*gathered)
    for number in (0, 700, 1099):
        world.succeed(f"s{number}", number)
    names = [step.name for step in gathered]
    assert world.store.results("run", names) == {"s0": 0, "s700": 700, "s1099": 1099}


def test_children_of_items_and_their_results(world: World):
    world.start(Step(name="m", action=Map(call=Call(task="tasks.m"), items=[1, 2])))
    for index in range(2):
        world.give(StepSucceeded(at=world.clock.now(), name="m", index=index, expansion=child_of(f"c{index}")))
    children = world.store.children("run")
    for index in range(2):
        world.succeed(f"c{index}_one")
        world.succeed(f"c{index}_two", index)
    world.after(5)

    assert [world.store.get(child).record.parent.index for child in children] == [0, 1]  # type: ignore[union-attr]
    assert world.store.result("run", Key("m")) == [0, 1]
    assert world.store.result("run", Key("m", 1)) == 1


def test_runs_of_which_nothing_was_heard_for_long(world: World):
    for run_id in ("a", "b", "c", "d"):
        world.start(task("s"), id=run_id)
    world.clock.advance(timedelta(minutes=10))
    world.succeed("s", run_id="a")
    world.give(SignalReceived(at=world.clock.now(), id="1", name="x"), "b")
    world.clock.advance(timedelta(minutes=1))
    quiet = world.store.stalled(quiet_for=timedelta(minutes=5), limit=10)
    assert [run_id for _, run_id in quiet] == ["c", "d"]
    assert world.store.stalled(quiet_for=timedelta(minutes=5), limit=1, after=quiet[0][0]) == quiet[1:]
    assert world.store.stalled(quiet_for=timedelta(0), limit=10)[0][1] == "b"


def test_what_is_due_comes_oldest_first(world: World):
    naps = [Step(name=f"n{seconds}", action=Sleep(seconds=seconds)) for seconds in (30, 10, 20)]
    world.start(*naps)
    assert world.store.due(10) == []
    assert world.store.next_due() == timedelta(seconds=10)
    world.clock.advance(timedelta(seconds=25))
    assert world.store.next_due() == timedelta(seconds=-15)
    first, second = world.store.due(10)
    assert world.store.due(1) == [first]
    world.store.deliver(first, world.effects)
    assert world.states() == {"n10": "succeeded", "n20": "sleeping", "n30": "sleeping"}
    assert world.store.due(10) == [second]


def test_an_event_whose_run_somebody_has_locked_is_left_for_later(world: World):
    if not world.database.has_writers:
        pytest.skip("here everybody waits for the writer")
    [nap] = world.start(Step(name="nap", action=Sleep(seconds=0))).due
    began, go_on = threading.Event(), threading.Event()

    def happening(now: int, view: Any) -> None:
        began.set()
        assert go_on.wait(30)

    holder = threading.Thread(target=lambda: world.store.give("run", happening, world.effects))
    holder.start()
    assert began.wait(30)
    assert world.store.deliver(nap, world.effects) is None
    assert world.store.due(10) == [nap]
    go_on.set()
    holder.join()
    assert world.store.deliver(nap, world.effects) is not None
    assert world.state() is RunState.SUCCEEDED


@requires(Capability.LISTEN_NOTIFY)
def test_who_waits_for_what_is_due_is_woken_by_what_is_due_later(world: World, database: Database):
    topic = TOPIC.format(prefix="workflow_")
    SQLWaiters(database).arm("me", [topic, "end"], armed_for=timedelta(minutes=1))
    waker = database.waker()
    assert waker is not None

    def heard_by_the_end() -> list[str]:
        database.run(lambda tx: database.announce(tx, ["end"]))
        heard: list[str] = []
        while "end" not in heard:
            heard += waker.wait(30) or ()
        return heard

    # It has begun to listen when it hears itself.
    while not waker.wait(0.1):
        database.run(lambda tx: database.announce(tx, ["end"]))
    heard_by_the_end()
    world.start(task("a"), Step(name="nap", action=Sleep(seconds=0)), id="now")
    assert topic not in heard_by_the_end()
    world.start(Step(name="nap", action=Sleep(seconds=5)), id="later")
    assert topic in heard_by_the_end()
    waker.close()


def test_a_run_that_was_cancelled_says_so(world: World):
    world.start(task("a"))
    world.give(CancelRequested(at=world.clock.now(), reason="enough"))
    record = world.store.get("run").record
    assert (record.state, record.reason, record.ending) == (RunState.CANCELLED, "enough", RunState.CANCELLED)
