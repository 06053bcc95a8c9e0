"""The state machine's own rules, event by event."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from celery_workflow.engine import events, journal
from celery_workflow.engine.codec import from_json, to_json
from celery_workflow.engine.decision import Decision
from celery_workflow.engine.definition import Call, Definition, Map, OnItemError, Sleep, Step, Task, Wait
from celery_workflow.engine.events import Event, StepFailed, StepRetried, StepStarted, StepSucceeded, TimerFired
from celery_workflow.engine.invariants import faults
from celery_workflow.engine.machine import create, decide
from celery_workflow.engine.maps import CHUNK
from celery_workflow.engine.memory import MemoryStore, Message
from celery_workflow.engine.policies import Error, Otherwise, RetryPolicy
from celery_workflow.engine.records import Key, Parent
from celery_workflow.engine.states import RunState, StepState, check_run_move, check_step_move
from celery_workflow.engine.values import Ref
from celery_workflow.errors import InvalidTransitionError

from .graphs import task


def started(*steps: Step, result: Any = None, **rest: Any) -> MemoryStore:
    store = MemoryStore()
    store.create("run", Definition(name="w", steps=steps, result=result, **rest))
    return store


def row(store: MemoryStore, name: str, index: int | None = None) -> Any:
    return store.get("run").rows[Key(name, index)]


def message(store: MemoryStore, name: str, index: int | None = None) -> Message:
    return next(m for m in store.messages.values() if (m.send.name, m.send.index) == (name, index))


def succeed(store: MemoryStore, name: str, result: Any = None, index: int | None = None) -> Decision:
    sent = message(store, name, index)
    return store.settle(sent, StepSucceeded(at=store.now, result=result, **which(sent)))


def which(sent: Message) -> dict[str, Any]:
    return {"name": sent.send.name, "index": sent.send.index, "epoch": sent.send.epoch, "attempt": sent.send.attempt}


def test_an_outcome_given_twice_counts_once():
    store = started(task("a"), task("b", Ref("a")), task("c", Ref("a"), Ref("b")))
    first = StepSucceeded(at=0, result=1, **which(message(store, "a")))
    store.give("run", first)

    assert store.give("run", first) == Decision(ignored="another attempt is current, or the step is over")
    assert row(store, "c").waits_for == 1


def test_a_failure_after_the_success_of_the_same_attempt_is_ignored():
    store = started(task("a"))
    told = which(message(store, "a"))
    succeed(store, "a")

    assert store.give("run", StepFailed(at=1, error=Error(type="Late"), **told)).ignored
    assert store.get("run").run.state is RunState.SUCCEEDED


def test_an_outcome_of_the_attempt_before_is_ignored():
    store = started(task("a", retry=RetryPolicy(max_attempts=3)))
    first = message(store, "a")
    failure = StepFailed(at=0, error=Error(type="E"), **which(first))
    store.settle(first, failure)

    assert store.give("run", failure).ignored
    assert store.give("run", StepSucceeded(at=0, result="late", **which(first))).ignored
    assert (row(store, "a").attempt, row(store, "a").failures) == (2, 1)


def test_a_start_that_is_told_twice_or_late_harms_nothing():
    store = started(task("a"))
    told = which(message(store, "a"))
    for _ in range(2):
        store.give("run", StepStarted(at=0, **told))
    assert row(store, "a").state is StepState.RUNNING
    succeed(store, "a")

    assert store.give("run", StepStarted(at=0, **told)).ignored


def test_the_attempts_of_a_step_have_one_task_id_and_another_after_a_rerun():
    store = started(task("a", retry=RetryPolicy(max_attempts=2)))
    first = message(store, "a")
    store.settle(first, StepFailed(at=0, error=Error(type="E"), **which(first)))
    second = message(store, "a")
    assert second.send.task_id == first.send.task_id
    assert (second.send.attempt, second.send.due_at) == (2, 1_000_000)

    succeed(store, "a")
    store.give("run", events.RerunRequested(at=0, epoch=1, scope="all"))

    assert message(store, "a").send.task_id != first.send.task_id


def test_jitter_is_the_same_whenever_it_is_drawn():
    policy = RetryPolicy(max_attempts=9, delay=10, factor=2, max_delay=60, jitter=0.5)
    delays = [policy.delay_after(failures, seed=f"run:{failures}") for failures in range(1, 9)]

    assert delays == [policy.delay_after(failures, seed=f"run:{failures}") for failures in range(1, 9)]
    for delay, full in zip(delays, [10, 20, 40, 60, 60, 60, 60, 60], strict=True):
        assert full * 500_000 <= delay <= full * 1_000_000
    assert len(set(delays)) > 4


def test_the_delay_never_overflows():
    assert RetryPolicy(max_attempts=10**6, factor=10.0).delay_after(10**6, seed="x") == 300_000_000


def test_a_retry_of_the_tasks_own_may_change_its_arguments():
    store = started(task("a", 1))
    sent = message(store, "a")
    store.settle(sent, StepRetried(at=0, due_at=5, retries=1, args=(2,), kwargs={"k": 3}, **which(sent)))

    again = message(store, "a").send
    assert (again.args, again.kwargs, again.retries, again.due_at) == ((2,), {"k": 3}, 1, 5)


def test_a_timer_that_was_set_for_something_else_is_ignored():
    store = started(Step(name="nap", action=Sleep(seconds=1)))

    assert store.give("run", TimerFired(at=2, name="nap", kind="sleep", due_at=7)).ignored
    assert store.give("run", TimerFired(at=2, name="nap", kind="timeout", due_at=1_000_000)).ignored
    assert row(store, "nap").state is StepState.SLEEPING


def test_the_longest_waiter_gets_the_signal():
    waits = [Step(name=name, action=Wait(signal="go")) for name in "ab"]
    store = MemoryStore()
    nap = Step(name="nap", action=Sleep(seconds=1))
    store.create("run", Definition(name="w", steps=(nap, Step(name="a", action=waits[0].action, after=("nap",)), waits[1])))
    store.now = 1_000_000
    store.fire(*store.timers[0])
    store.give("run", events.SignalReceived(at=store.now, id="1", name="go", payload="x"))

    assert (row(store, "a").state, row(store, "b").state) == (StepState.AWAITING, StepState.SUCCEEDED)


def test_an_item_among_a_hundred_thousand_costs_a_few_rows():
    total = 100_000
    store = started(
        task("list"), Step(name="m", action=Map(call=Call(task="t"), items=Ref("list"), max_parallel=10)), result=Ref("m")
    )
    succeed(store, "list", list(range(total)))
    assert row(store, "m").inserted == CHUNK

    run = store.get("run")
    for index in range(1200):
        run.reads = 0
        decision = succeed(store, "m", index, index)
        assert run.reads <= 5
        assert len(decision.steps) <= 3
        assert len(decision.sends) <= 1
        for timer in store.due_timers():
            assert len(store.fire(*timer).steps) <= CHUNK + 11

    assert row(store, "m").in_flight == 10
    assert row(store, "m").inserted <= 1200 + 2 * CHUNK


def test_a_map_without_bound_is_sent_chunk_by_chunk():
    store = started(Step(name="m", action=Map(call=Call(task="t"), items=list(range(1201)))))
    sizes = [len(store.messages)]
    while timers := store.due_timers():
        sizes.append(len(store.fire(*timers[0]).sends))

    assert sizes == [500, 500, 201]


def test_one_outcome_of_a_wide_group_does_not_read_the_others():
    store = started(*(task(f"s{n}") for n in range(3000)), task("join", [Ref(f"s{n}") for n in range(3000)]))
    run = store.get("run")
    run.reads = 0

    decision = succeed(store, "s7")

    assert run.reads <= 2
    assert {record.name for record in decision.steps} == {"s7", "join"}
    assert row(store, "join").waits_for == 2999


def test_a_long_row_of_skipped_steps_ends_in_one_decision():
    steps = [task("s0", when=False, on_unmet=Otherwise.SKIP_CASCADE)]
    steps += [task(f"s{n}", Ref(f"s{n - 1}")) for n in range(1, 3000)]

    assert started(*steps).get("run").run.state is RunState.SUCCEEDED


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Map(call=Call(task="t"), items=[[1], 2], star=True), "each item of such a map is a list of arguments"),
        (Map(call=Call(task="t", args=(Ref("a", ("x",)),)), items=[1, 2]), "the result of step 'a' has no 'x'"),
    ],
)
def test_a_map_whose_arguments_make_no_sense_fails_before_any_item_is_sent(action: Map, message: str):
    store = started(task("a"), Step(name="m", action=action, after=("a",)))
    decision = succeed(store, "a", {})

    assert decision.sends == ()
    assert message in row(store, "m").error.message
    assert store.get("run").run.state is RunState.FAILED


def test_the_time_for_attempts_begins_when_the_first_is_due():
    late = Step(
        name="a",
        action=Task(call=Call(task="t", countdown=1000)),
        retry=RetryPolicy(max_attempts=9, delay=10, factor=1, until=25),
    )
    store = started(late)
    tries = 0
    while store.messages:
        tries += 1
        store.now = store.next_due() or store.now
        sent = message(store, "a")
        store.settle(sent, StepFailed(at=store.now, error=Error(type="E"), **which(sent)))

    assert tries == 3


def test_a_map_that_fails_takes_back_what_has_not_begun():
    action = Map(call=Call(task="t"), items=[0, 1, 2, 3], max_parallel=3, on_error=OnItemError.FAIL)
    store = started(Step(name="m", action=action))
    sent = message(store, "m", 1)
    store.settle(sent, StepFailed(at=0, error=Error(type="E"), **which(sent)))
    while store.posts:
        store.give(*store.posts.popleft())

    assert [str(row(store, "m", index).state) for index in range(4)] == ["cancelled", "failed", "cancelled", "pending"]
    assert store.get("run").run.state is RunState.FAILED


def test_a_retry_that_is_asked_twice_is_done_once():
    store = started(task("a"))
    sent = message(store, "a")
    store.settle(sent, StepFailed(at=0, error=Error(type="E"), **which(sent)))
    request = events.RetryRequested(at=0, epoch=1)

    assert not store.give("run", request).ignored
    assert store.give("run", request).ignored
    assert store.get("run").run.epoch == 2


def test_a_step_that_is_skipped_in_a_rerun_has_no_result_from_before():
    flag = task("flag")
    maybe = task("maybe", Ref("flag"), when=Ref("flag"))
    store = started(flag, maybe, task("last", Ref("maybe")), result=Ref("maybe"))
    for name in ("flag", "maybe", "last"):
        succeed(store, name, name)
    store.give("run", events.RerunRequested(at=0, epoch=1, scope="all"))
    succeed(store, "flag", False)

    assert message(store, "last").send.args == (None,)


def test_a_child_is_started_once_and_its_end_counts_once():
    child = Definition(name="c", steps=(task("x"),), result=Ref("x"))
    store = started(Step(name="a", action=Task(call=Call(task="t"), expands=True)), result=Ref("a"))
    sent = message(store, "a")
    event = StepSucceeded(at=0, expansion=child, **which(sent))
    store.settle(sent, event)
    assert store.give("run", event).ignored
    succeed(store, "x", 7)
    (ended,) = store.posts
    for _ in range(2):
        store.give(*ended)

    assert store.get("run").results(["$run"]) == {"$run": 7}
    assert len(store.runs) == 2


@pytest.mark.parametrize(
    ("kind", "rest", "state"),
    [
        (StepFailed, {"error": Error(type="E")}, StepState.FAILED),
        (StepRetried, {"due_at": 5}, StepState.CANCELLED),
        (events.StepSnoozed, {"due_at": 5}, StepState.CANCELLED),
        (StepSucceeded, {"expansion": Definition(name="c", steps=())}, StepState.CANCELLED),
        (StepSucceeded, {"result": 1}, StepState.SUCCEEDED),
    ],
)
def test_a_run_that_stops_lets_no_step_begin_again(kind: Any, rest: dict[str, Any], state: StepState):
    store = started(task("a", retry=RetryPolicy(max_attempts=3)), task("b"))
    running = message(store, "a")
    running.leased = True
    failed = message(store, "b")
    store.settle(failed, StepFailed(at=0, error=Error(type="E"), **which(failed)))
    assert store.get("run").run.state is RunState.STOPPING

    store.settle(running, kind(at=0, **rest, **which(running)))

    assert row(store, "a").state is state
    assert (store.messages, len(store.runs)) == ({}, 1)
    assert store.get("run").run.state is RunState.FAILED


def test_a_run_that_is_tried_again_has_its_time_anew():
    store = started(task("a"), timeout=60)
    failed = message(store, "a")
    store.settle(failed, StepFailed(at=0, error=Error(type="E"), **which(failed)))
    store.now = 50_000_000
    store.give("run", events.RetryRequested(at=store.now, epoch=1))

    assert store.give("run", events.DeadlinePassed(at=60_000_000, due_at=60_000_000)).ignored
    assert not store.give("run", events.DeadlinePassed(at=110_000_000, due_at=110_000_000)).ignored


def test_the_end_of_a_childs_epoch_before_is_ignored():
    child = Definition(name="c", steps=(task("x"),), result=Ref("x"))
    store = started(Step(name="a", action=Task(call=Call(task="t"), expands=True)), result=Ref("a"))
    sent = message(store, "a")
    store.settle(sent, StepSucceeded(at=0, expansion=child, **which(sent)))
    failed = message(store, "x")
    store.settle(failed, StepFailed(at=0, error=Error(type="E"), **which(failed)))
    run_id, ended = store.posts.popleft()
    store.give(run_id, ended)
    store.give("run", events.RetryRequested(at=0, epoch=1))

    assert store.give(run_id, ended).ignored
    store.give(*store.posts.popleft())
    succeed(store, "x", 7)
    store.give(*store.posts.popleft())
    assert store.get("run").results(["$run"]) == {"$run": 7}


def test_a_run_that_waits_for_its_turn_can_be_cancelled():
    definition = Definition(name="w", steps=(task("a"),))
    store = MemoryStore()
    store.create("first", definition, concurrency_key="k")
    store.create("run", definition, concurrency_key="k")
    store.give("run", events.CancelRequested(at=0, reason="no"))

    assert store.get("run").run.state is RunState.CANCELLED
    assert len(store.messages) == 1


def test_a_workflow_without_steps_succeeds_at_once():
    decision = create("run", Definition(name="w", steps=(), result={"x": 1}), at=5)

    assert (decision.ended, decision.result) == (True, {"x": 1})


def test_moves_that_the_picture_does_not_have_are_refused():
    with pytest.raises(InvalidTransitionError, match="step 'a' cannot go from succeeded to running"):
        check_step_move("a", StepState.SUCCEEDED, StepState.RUNNING)
    with pytest.raises(InvalidTransitionError, match="run r cannot go from failed to succeeded"):
        check_run_move("r", RunState.FAILED, RunState.SUCCEEDED)


def test_a_doctor_sees_a_run_that_nothing_will_move():
    store = started(task("a"), task("b", Ref("a")))
    run = store.get("run")
    assert faults(run.definition, run.run, run.rows) == []
    del run.rows[Key("a")]

    assert faults(run.definition, run.run, run.rows) == [
        "step a is ready and has not begun",
        "the run is running and nothing will move it",
    ]


def all_events() -> list[Event]:
    """One of each kind, with something in every field."""
    error = Error(type="E", message="m", traceback="t", kinds=("a.E",), permanent=True)
    outcome = {"at": 1, "name": "a", "index": 2, "epoch": 3, "attempt": 4}
    definition = Definition(
        name="d", steps=(task("x", {"$": "Ref"}, retry=RetryPolicy(max_attempts=3, no_retry_on=("E",))),)
    )
    return [
        events.RunAdmitted(at=1),
        StepStarted(**outcome),
        StepSucceeded(**outcome, result={"$": [1, {"a": None}]}, expansion=definition),
        StepFailed(**outcome, error=error),
        StepRetried(**outcome, due_at=5, retries=2, args=(1, [2]), kwargs={"k": 1}, error=error),
        events.StepSnoozed(**outcome, due_at=5),
        events.StepWithdrawn(**outcome),
        TimerFired(at=1, name="a", kind="sleep", due_at=5),
        events.DeadlinePassed(at=1, due_at=5),
        events.SignalReceived(at=1, id="i", name="n", payload=[1]),
        events.ChildFinished(
            at=1, name="a", index=0, child_id="c", child_epoch=2, state=RunState.FAILED, result=1, error=error
        ),
        events.CancelRequested(at=1, reason="r", children=False),
        events.RetryRequested(at=1, epoch=2),
        events.RerunRequested(at=1, epoch=2, step="a", scope="all"),
    ]


@pytest.mark.parametrize("event", all_events(), ids=lambda event: type(event).__name__)
def test_an_event_survives_json(event: Event):
    again = from_json(json.loads(json.dumps(to_json(event))))

    assert again == event
    assert [type(getattr(again, field.name)) for field in fields(again)] == [
        type(getattr(event, field.name)) for field in fields(event)
    ]


def test_every_event_has_a_json_test_and_a_handler():
    kinds = {getattr(events, name) for name in events.__all__} - {Event, events.Outcome}
    assert {type(event) for event in all_events()} == kinds

    store = started(task("a"))
    for event in all_events():
        if not isinstance(event, events.RerunRequested | events.RetryRequested):
            decide(store.get("run"), event)


def test_the_journal_keeps_the_newest_failures():
    entries = [
        journal.Entry(at=n, state="sent", why="retry", epoch=1, name="a", attempt=n, error=Error(type=f"E{n}"))
        for n in range(30)
    ]

    shown = journal.errors(from_json(json.loads(json.dumps(to_json(entries)))))

    assert [one["error"].type for one in shown] == [f"E{n}" for n in range(10, 30)]
    assert journal.errors(entries, newest=0) == []


def test_a_parent_is_told_of_the_end_of_each_epoch():
    decision = create("c", Definition(name="w", steps=()), at=0, parent=Parent("p", "step", 3))

    (post,) = decision.posts
    assert (post.run_id, post.event) == (
        "p",
        events.ChildFinished(at=0, name="step", index=3, child_id="c", child_epoch=1, state=RunState.SUCCEEDED),
    )
