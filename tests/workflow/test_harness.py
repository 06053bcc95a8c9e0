"""Workflows run in process: what users see of the engine, and the harness itself."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_workflow import workflow
from celery_workflow.building.builder import Builder, Workflow
from celery_workflow.engine.events import StepSucceeded
from celery_workflow.engine.journal import fold
from celery_workflow.errors import InvalidTransitionError, RunFailedError, RunNotFoundError
from celery_workflow.testing import HarnessRun, WorkflowHarness

from .tasks import (
    act,
    add,
    app,
    double,
    failing,
    give_up,
    hear,
    load_order,
    make_canvas,
    mark,
    numbers,
    replace_itself,
    retried_for_everything,
    retry_itself,
    send_another,
    snooze_once,
    told,
)

pytest_plugins = ["celery_workflow.pytest_plugin"]


_numbers = itertools.count()


def made(build: Any, **settings: Any) -> Workflow:
    # A name serves one workflow of an app only.
    return workflow(app, name=f"test.{build.__name__}_{next(_numbers)}", **settings)(build)


def finished(harness: WorkflowHarness, build: Any, **settings: Any) -> HarnessRun:
    run = harness.start(made(build, **settings))
    harness.run_to_end()
    return run


def states(run: HarnessRun) -> dict[str, str]:
    return {name: step.status for name, step in run.steps().items()}


@workflow(app, name="orders.fulfil", timeout=timedelta(days=7))
def fulfil(w: Builder, order_id: int) -> Any:
    order = w.step(load_order.s(order_id))
    pay = w.step(act.s("charge", order["card"], order["total"]), name="charge", compensate=hear.s("refund", order_id))
    ok = w.wait_for("approved", timeout=timedelta(days=2), on_timeout="fail", after=pay)
    lines = w.map(mark, order["lines"], max_parallel=2, after=ok)
    return w.step(mark.s(order_id, lines, ok["by"]), name="ship")


# Signals


def test_a_signal_lets_the_run_go_on_with_its_payload(harness: WorkflowHarness):
    run = harness.start(fulfil, order_id=42)
    harness.run_until_idle()
    assert (run.status, run.steps()["approved"].status) == ("running", "awaiting")

    run.signal("approved", {"by": "ann"})
    harness.run_until_idle()

    assert run.result() == [42, [["pen"], ["ink"], ["paper"]], "ann"]


def test_a_signal_that_comes_early_is_kept(harness: WorkflowHarness):
    run = harness.start(fulfil, order_id=1)
    run.signal("approved", {"by": "bob"})
    harness.run_until_idle()

    assert run.status == "succeeded"


def test_the_second_signal_of_an_id_is_ignored(harness: WorkflowHarness):
    def two_signals(w: Builder) -> Any:
        first = w.wait_for("go", timeout=None, name="first")
        return [first, w.wait_for("go", timeout=None, name="second", after=first)]

    run = harness.start(made(two_signals))
    for payload, id in [(1, "x"), (2, "x"), (3, "y")]:
        run.signal("go", payload, id=id)

    assert run.result() == [1, 3]


def test_without_the_signal_in_time_the_run_fails_and_undoes_what_was_done(harness: WorkflowHarness):
    run = harness.start(fulfil, order_id=1)
    harness.run_until_idle()
    harness.advance(days=1, hours=23)
    with pytest.raises(RunFailedError, match=r"is running: run_until_idle\(\) and advance\(\) go on with it"):
        run.result()

    harness.advance(hours=1)

    assert run.status == "failed"
    assert run.steps()["hear"].status == "succeeded"
    assert ("heard", "refund", 1) in told
    with pytest.raises(RunFailedError, match="no signal 'approved' came in time"):
        run.result()


@pytest.mark.parametrize(
    ("on_timeout", "expected"),
    [
        ("skip", ("succeeded", "skipped", "succeeded")),
        ("skip-cascade", ("succeeded", "skipped", "skipped")),
        ("discard", ("discarded", "failed", "cancelled")),
    ],
)
def test_what_follows_a_timeout_is_a_choice(harness: WorkflowHarness, on_timeout: str, expected: tuple[str, ...]):
    def timed(w: Builder) -> Any:
        ok = w.wait_for("ok", timeout=60, on_timeout=on_timeout)
        return w.step(mark.s(ok), name="next")

    run = finished(harness, timed)

    assert (run.status, run.steps()["ok"].status, run.steps()["next"].status) == expected


# Time


def test_a_sleep_takes_its_time_and_no_worker(harness: WorkflowHarness):
    def sleeping(w: Builder) -> Any:
        nap = w.sleep(timedelta(hours=8))
        return w.step(act.s("awake"), after=nap)

    run = harness.start(made(sleeping))
    harness.advance(hours=7, minutes=59)
    assert (run.steps()["sleep"].status, told) == ("sleeping", [])

    harness.advance(minutes=1)

    assert run.result() == "awake"


def test_a_sleep_ends_at_the_moment_a_result_names(harness: WorkflowHarness):
    def until(w: Builder) -> Any:
        when = w.step(act.s("2026-01-03T12:00:00"))
        return w.step(act.s("awake"), name="wake", after=w.sleep_until(when))

    run = finished(harness, until)

    assert run.status == "succeeded"
    assert harness.now == datetime(2026, 1, 3, 12, tzinfo=UTC)


def test_a_run_that_takes_longer_than_it_may_fails_and_stops_its_steps(harness: WorkflowHarness):
    def slow(w: Builder) -> None:
        w.sleep(3600)
        w.step(act.s("done"), compensate=hear.s("undone"))

    run = finished(harness, slow, timeout=60)

    assert states(run) == {"sleep": "cancelled", "act": "succeeded", "hear": "succeeded"}
    assert harness.now == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    with pytest.raises(RunFailedError, match="DeadlinePassed: the run took longer than 60 seconds"):
        run.result()


# Conditions


@pytest.mark.parametrize(
    ("on_unmet", "expected"),
    [
        ("skip", ("succeeded", "skipped", "succeeded", [[None]])),
        ("skip-cascade", ("succeeded", "skipped", "skipped", [None])),
        ("fail", ("failed", "failed", "cancelled", None)),
    ],
)
def test_a_step_whose_condition_is_not_met(harness: WorkflowHarness, on_unmet: str, expected: Any):
    def conditional(w: Builder) -> Any:
        order = w.step(load_order.s(1))
        big = w.step(mark.s(order), name="big", when=order["total"] > 1000, on_unmet=on_unmet)
        return [w.step(mark.s(big), name="next")]

    run = finished(harness, conditional)

    shown = run.steps()
    result = run.result() if run.status == "succeeded" else None
    assert (run.status, shown["big"].status, shown["next"].status, result) == expected


def test_of_two_branches_one_is_taken_and_the_join_goes_on(harness: WorkflowHarness):
    def branches(w: Builder) -> Any:
        order = w.step(load_order.s(1))
        rich, poor = order["total"] > 100, ~(order["total"] > 100)
        return w.step(mark.s(w.step(act.s("rich"), when=rich), w.step(act.s("poor"), when=poor)))

    assert finished(harness, branches).result() == ["rich", None]


def test_a_reference_to_what_is_not_there_fails_the_step_with_its_name(harness: WorkflowHarness):
    def wrong(w: Builder) -> Any:
        order = w.step(load_order.s(1))
        return w.step(mark.s(order["lines"][7]))

    run = finished(harness, wrong)

    with pytest.raises(RunFailedError, match="the result of step 'load_order' has no 7"):
        run.result()


# Failures


def test_a_step_is_tried_again_after_growing_delays(harness: WorkflowHarness):
    failing["x"] = 3

    def trying(w: Builder) -> Any:
        return w.step(act.s("x"), retry={"max_attempts": 4, "delay": 10, "factor": 3})

    run = finished(harness, trying)

    assert run.result() == "x"
    assert harness.now == datetime(2026, 1, 1, 0, 0, 10 + 30, tzinfo=UTC) + timedelta(seconds=90)
    assert [one["attempt"] for one in run.errors] == [1, 2, 3]


@pytest.mark.parametrize(
    ("signature", "retry"),
    [
        (act.s("x"), {"max_attempts": 5, "no_retry_on": "Planned"}),
        (give_up.s("x"), {"max_attempts": 5}),
        (act.s("x"), {"max_attempts": 5, "delay": 10, "until": 5}),
    ],
    ids=["no_retry_on", "permanent", "until"],
)
def test_some_failures_are_not_tried_again(harness: WorkflowHarness, signature: Any, retry: Any):
    failing["x"] = 1

    def trying(w: Builder) -> Any:
        return w.step(signature, name="it", retry=retry)

    run = finished(harness, trying)

    assert (run.status, run.steps()["it"].attempt) == ("failed", 1)
    assert run.errors[-1]["error"].type == "Planned"


def test_a_snooze_costs_no_attempt(harness: WorkflowHarness):
    def tired(w: Builder) -> Any:
        return w.step(snooze_once.s("x"))

    run = finished(harness, tired)

    assert run.result() == "rested"
    assert harness.now == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert run.errors == []


def test_a_tasks_own_retry_keeps_its_id_and_its_count(harness: WorkflowHarness):
    def own(w: Builder) -> Any:
        return w.step(retry_itself.s("x"))

    run = finished(harness, own)

    assert run.result() == 2
    assert told == [("x", 0), ("x", 1), ("x", 2)]
    assert harness.now == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("other", ("succeeded", 1, ["Planned"])),
        ("snooze", ("succeeded", 60, [])),
        ("permanent", ("failed", 0, ["Permanent"])),
    ],
)
def test_a_task_that_celery_retries_for_everything_keeps_what_it_wished(harness: WorkflowHarness, what: str, expected: Any):
    def wishing(w: Builder) -> Any:
        return w.step(retried_for_everything.s(what))

    began = harness.now
    run = finished(harness, wishing)

    assert (run.status, (harness.now - began).seconds, [one["error"].type for one in run.errors]) == expected


@pytest.mark.parametrize(("fail_fast", "other"), [(True, "cancelled"), (False, "succeeded")])
def test_what_a_failure_means_for_the_other_branches_is_a_choice(harness: WorkflowHarness, fail_fast: bool, other: str):
    failing["bad"] = 1

    def branches(w: Builder) -> Any:
        bad = w.step(act.s("bad"), name="bad")
        w.step(mark.s(bad), name="after_bad")
        w.step(act.s("good"), name="good", after=w.sleep(10))

    run = finished(harness, branches, fail_fast=fail_fast)

    assert run.status == "failed"
    assert states(run) == {
        "bad": "failed",
        "after_bad": "cancelled" if fail_fast else "upstream_failed",
        "sleep": other,
        "good": other,
    }


@pytest.mark.parametrize(
    ("on_exhausted", "status", "bad", "after_bad"),
    [
        ("skip", "succeeded", "skipped", "succeeded"),
        ("skip-cascade", "succeeded", "skipped", "skipped"),
        ("discard", "discarded", "failed", "cancelled"),
    ],
)
def test_what_spent_attempts_mean_is_a_choice(
    harness: WorkflowHarness, on_exhausted: str, status: str, bad: str, after_bad: str
):
    failing["bad"] = 9

    def exhausted(w: Builder) -> None:
        ref = w.step(act.s("bad"), name="bad", retry=2, on_exhausted=on_exhausted)
        w.step(mark.s(ref), name="after_bad")
        w.on_failure(hear.s("alarm"))

    run = finished(harness, exhausted)

    assert (run.status, run.steps()["bad"].status, run.steps()["after_bad"].status) == (status, bad, after_bad)
    assert told == ["bad", "bad"]


def test_compensations_run_in_reverse_order_of_completion(harness: WorkflowHarness):
    failing["last"] = 1

    def saga(w: Builder) -> None:
        slow = w.step(act.s("slow"), name="slow", after=w.sleep(60), compensate=lambda ref: hear.s("undo", ref))
        quick = w.step(act.s("quick"), name="quick", compensate=lambda ref: hear.s("undo", ref))
        w.step(act.s("last"), after=[slow, quick], compensate=hear.s("never"))

    run = finished(harness, saga)

    assert run.status == "failed"
    assert told == ["quick", "slow", "last", ("heard", "undo", "slow"), ("heard", "undo", "quick")]


def test_a_compensation_that_fails_does_not_keep_the_others_from_running(harness: WorkflowHarness):
    failing.update({"undo b": 1, "c": 1})

    def saga(w: Builder) -> None:
        a = w.step(act.s("a"), name="a", compensate=act.s("undo a"))
        b = w.step(act.s("b"), name="b", after=a, compensate=act.s("undo b"))
        w.step(act.s("c"), name="c", after=b)

    run = finished(harness, saga)

    assert told == ["a", "b", "c", "undo b", "undo a"]
    assert run.status == "failed"
    assert [one["error"].message for one in run.errors] == ["c", "undo b"]


def test_handlers_are_told_of_the_end_once(harness: WorkflowHarness):
    def ending(w: Builder) -> Any:
        w.on_success(hear.s("good"))
        w.on_failure(hear.s("bad"))
        w.on_cancel(hear.s("stopped"))
        nap = w.sleep(10)
        return w.step(act.s("x"), name="x", after=nap)

    run = finished(harness, ending)
    assert told == ["x", ("heard", "x", "good")]

    failing["x"] = 1
    told.clear()
    failed = finished(harness, ending)
    facts = told[-1][1]
    assert (facts["id"], facts["step"], facts["error"]["type"]) == (failed.id, "x", "Planned")
    assert facts["task_id"] == failed.steps()["x"].task_id
    assert told[-1][2] == "bad"

    cancelled = harness.start(made(ending))
    cancelled.cancel("enough")
    harness.run_to_end()
    assert (told[-1][1]["reason"], told[-1][2]) == ("enough", "stopped")
    assert run.status == "succeeded"


# Cancel


def test_a_cancelled_run_begins_nothing_and_undoes_what_was_done(harness: WorkflowHarness):
    def long(w: Builder) -> None:
        first = w.step(act.s("first"), name="first", compensate=act.s("undo"))
        nap = w.sleep(3600, after=first)
        w.step(act.s("later"), name="later", after=nap)

    run = harness.start(made(long))
    harness.run_until_idle()
    run.cancel("no longer wanted")
    harness.run_to_end()

    assert run.status == "cancelled"
    assert told == ["first", "undo"]
    assert run.steps()["later"].status == "cancelled"
    run.cancel("again")
    assert run.status == "cancelled"


def test_a_step_that_waits_in_the_queue_is_withdrawn_by_a_cancel(harness: WorkflowHarness):
    run = harness.start(made(lambda_step))
    run.cancel()
    harness.run_until_idle()

    assert (run.status, harness.executions) == ("cancelled", [])
    assert harness.store.messages == {}


def lambda_step(w: Builder) -> Any:
    return w.step(act.s("x"))


@workflow(app, name="test.child")
def child(w: Builder, n: int) -> Any:
    return w.step(act.s(f"child {n}"), after=w.sleep(100))


@pytest.mark.parametrize(("children", "status", "done"), [(True, "cancelled", []), (False, "succeeded", ["child 1"])])
def test_a_cancel_reaches_the_children_unless_told_otherwise(
    harness: WorkflowHarness, children: bool, status: str, done: list[Any]
):
    def parent(w: Builder) -> Any:
        return w.sub(child, name="child", n=1)

    run = harness.start(made(parent))
    harness.run_until_idle()
    run.cancel(children=children)
    harness.run_to_end()

    assert (run.status, run.children()[0].status, told) == ("cancelled", status, done)


# Maps


def test_a_map_runs_over_a_result_and_keeps_the_order(harness: WorkflowHarness):
    harness = WorkflowHarness(app, seed=3)

    def mapping(w: Builder) -> Any:
        return w.step(mark.s(w.map(add.s(100), w.step(numbers.s(7)))))

    assert finished(harness, mapping).result() == [[100 + n for n in range(7)]]


@pytest.mark.parametrize("items", [[], None, {"a": 1}])
def test_a_map_over_nothing_and_over_no_list(harness: WorkflowHarness, items: Any):
    def mapping(w: Builder) -> Any:
        return w.map(double, w.step(mark.s(given=items))[0]["given"])

    run = finished(harness, mapping)

    if items == []:
        assert run.result() == []
    else:
        assert "a map needs a list, not " in run.errors[-1]["error"].message


def test_a_map_never_has_more_in_flight_than_it_may(harness: WorkflowHarness):
    def mapping(w: Builder) -> Any:
        return w.map(double, w.step(numbers.s(20)), max_parallel=3)

    run = harness.start(made(mapping))
    most = 0
    while harness._do_one():
        most = max(most, len(harness.store.messages))

    assert most == 3
    assert run.result() == [2 * n for n in range(20)]


def test_the_first_item_is_done_before_the_last_is_stored(harness: WorkflowHarness):
    def mapping(w: Builder) -> Any:
        return w.map(double, w.step(numbers.s(1200)), name="doubles", max_parallel=10)

    run = harness.start(made(mapping))
    while ("doubles", 0) not in harness.executions:
        harness._do_one()
    assert run.progress()["total"] == 501
    harness.run_until_idle()

    assert run.result() == [2 * n for n in range(1200)]
    assert run.progress() == {"succeeded": 1201, "total": 1201}


@pytest.mark.parametrize(
    ("on_error", "status", "done"),
    [("fail", "failed", 3), ("finish", "failed", 6), ("skip", "succeeded", 6)],
)
def test_what_a_failed_item_means_is_a_choice(harness: WorkflowHarness, on_error: str, status: str, done: int):
    failing["c"] = 1

    def mapping(w: Builder) -> Any:
        return w.map(act, list("abcdef"), max_parallel=1, on_error=on_error)

    run = finished(harness, mapping)

    assert (run.status, len(told)) == (status, done)
    if status == "succeeded":
        assert run.result() == ["a", "b", None, "d", "e", "f"]


def test_an_item_is_tried_again_by_the_maps_policy(harness: WorkflowHarness):
    failing["b"] = 2

    def mapping(w: Builder) -> Any:
        return w.map(act, ["a", "b"], retry=3)

    assert finished(harness, mapping).result() == ["a", "b"]


# Runs within runs


def test_a_sub_workflow_gives_its_result(harness: WorkflowHarness):
    def parent(w: Builder) -> Any:
        order = w.step(load_order.s(5))
        return w.step(mark.s(w.sub(child, n=order["id"])))

    run = finished(harness, parent)

    assert run.result() == ["child 5"]
    assert run.children()[0].steps()["act"].result == "child 5"


def test_a_step_that_expands_is_as_long_as_its_canvas(harness: WorkflowHarness):
    def expanding(w: Builder) -> Any:
        return w.step(mark.s(w.expand(make_canvas.s(3))))

    assert finished(harness, expanding).result() == [[[0, 2, 4]]]


def test_a_task_that_replaces_itself_is_as_long_as_its_replacement(harness: WorkflowHarness):
    def replacing(w: Builder) -> Any:
        return w.step(mark.s(w.step(replace_itself.s(3)), w.map(replace_itself, [1, 2])))

    run = finished(harness, replacing)

    assert run.result() == [[0, 2, 4], [[0], [0, 2]]]
    assert len(run.children()) == 3


def test_a_compensation_that_replaces_itself_is_waited_for(harness: WorkflowHarness):
    failing["b"] = 1

    def saga(w: Builder) -> None:
        a = w.step(act.s("a"), name="a", compensate=act.s("undo a"))
        b = w.step(act.s("b0"), name="b0", after=a, compensate=replace_itself.s(2))
        w.step(act.s("b"), name="b", after=b)

    run = finished(harness, saga)

    assert states(run)["replace_itself"] == "succeeded"
    assert told[-1] == "undo a"


def test_an_expansion_that_is_no_canvas_fails_the_step(harness: WorkflowHarness):
    def expanding(w: Builder) -> Any:
        return w.expand(double.s(2))

    run = finished(harness, expanding)

    assert "an expanding step returns a canvas, not int" in run.errors[-1]["error"].message


def test_a_failed_child_fails_its_step_and_a_retry_goes_on_inside_it(harness: WorkflowHarness):
    failing["child 1"] = 1

    def parent(w: Builder) -> Any:
        return w.step(mark.s(w.sub(child, n=1)), name="last")

    run = finished(harness, parent)
    assert (run.status, run.steps()["child"].status) == ("failed", "failed")

    run.retry()
    harness.run_to_end()

    assert run.result() == ["child 1"]
    assert len(run.children()) == 1


# Retry and rerun


def three(w: Builder) -> Any:
    a = w.step(act.s("a"), name="a")
    b = w.step(act.s("b"), name="b", after=a)
    return w.step(act.s("c"), name="c", after=b)


def test_a_retry_goes_on_from_the_failed_step(harness: WorkflowHarness):
    failing["b"] = 1
    run = finished(harness, three)
    assert states(run) == {"a": "succeeded", "b": "failed", "c": "cancelled"}

    run.retry()
    harness.run_to_end()

    assert run.result() == "c"
    assert told == ["a", "b", "b", "c"]
    assert (run.steps()["a"].epoch, run.steps()["b"].epoch) == (1, 2)


def test_a_retry_does_again_what_was_undone(harness: WorkflowHarness):
    failing["b"] = 1

    def undone(w: Builder) -> Any:
        a = w.step(act.s("a"), name="a", compensate=act.s("undo a"))
        return w.step(act.s("b"), name="b", after=a)

    run = finished(harness, undone)
    run.retry()
    harness.run_to_end()

    assert run.result() == "b"
    assert told == ["a", "b", "undo a", "a", "b"]


def test_what_is_done_again_is_undone_again(harness: WorkflowHarness):
    failing["b"] = 2

    def undone(w: Builder) -> Any:
        a = w.step(act.s("a"), name="a", compensate=act.s("undo a"))
        return w.step(act.s("b"), name="b", after=a)

    run = finished(harness, undone)
    run.retry()
    harness.run_to_end()

    assert run.status == "failed"
    assert told == ["a", "b", "undo a", "a", "b", "undo a"]


@pytest.mark.parametrize("kept", ["upstream_failed", "skipped"])
def test_a_rerun_minds_what_it_keeps(harness: WorkflowHarness, kept: str):
    failing["bad"] = 1

    def minding(w: Builder) -> None:
        bad = w.step(act.s("bad"), name="bad", on_exhausted="fail" if kept == "upstream_failed" else "skip-cascade")
        good = w.step(act.s("good"), name="good")
        w.step(act.s("last"), name="last", after=[bad, good])

    run = finished(harness, minding, fail_fast=False)
    run.rerun(from_step="good")
    harness.run_to_end()

    assert run.steps()["last"].status == kept
    assert told.count("good") == 2
    assert "last" not in told


def test_a_retry_of_a_map_keeps_the_items_that_succeeded(harness: WorkflowHarness):
    failing["b"] = 1

    def mapping(w: Builder) -> Any:
        return w.map(act, list("abcd"), max_parallel=1)

    run = finished(harness, mapping)
    assert told == ["a", "b"]

    run.retry()
    harness.run_to_end()

    assert run.result() == list("abcd")
    assert told == ["a", "b", "b", "c", "d"]


@pytest.mark.parametrize(
    ("step", "scope", "again"),
    [("b", "step", ["b"]), ("b", "downstream", ["b", "c"]), (None, "all", ["a", "b", "c"])],
)
def test_a_rerun_does_again_what_is_in_its_scope(harness: WorkflowHarness, step: str, scope: str, again: list[str]):
    run = finished(harness, three)
    told.clear()

    run.rerun(from_step=step, scope=scope)
    harness.run_to_end()

    assert (run.status, told) == ("succeeded", again)


def test_a_run_that_is_not_over_is_not_done_again(harness: WorkflowHarness):
    run = harness.start(made(three))
    with pytest.raises(InvalidTransitionError, match="is running: only what is over can be done again"):
        run.retry()
    harness.run_to_end()
    with pytest.raises(InvalidTransitionError, match="nothing to try again"):
        run.retry()
    with pytest.raises(InvalidTransitionError, match="no step 'd'"):
        run.rerun(from_step="d")
    with pytest.raises(InvalidTransitionError, match="scope is step, downstream or all"):
        run.rerun(from_step="a", scope="some")


def test_an_outcome_of_an_epoch_before_is_ignored(harness: WorkflowHarness):
    failing["b"] = 1
    run = finished(harness, three)
    run.retry()
    message = next(iter(harness.store.messages.values()))
    late = StepSucceeded(at=harness.store.now, name="b", epoch=1, attempt=1, result="late")

    assert harness.store.give(run.id, late).ignored
    assert message.send.epoch == 2
    harness.run_to_end()
    assert run.steps()["b"].result == "b"


# One after the other


def test_runs_of_one_key_follow_each_other(harness: WorkflowHarness):
    flow = workflow(app, name="test.keyed", concurrency_key="customer-{customer}")(keyed)
    first, second, third, other = (harness.start(flow, customer=c, n=n) for n, c in enumerate(["x", "x", "x", "y"]))
    harness.run_until_idle()
    assert [run.status for run in (first, second, third, other)] == ["running", "pending", "pending", "running"]

    second.cancel()
    harness.run_to_end()

    assert [run.status for run in (first, second, third, other)] == ["succeeded", "cancelled", "succeeded", "succeeded"]
    assert told.index(0) < told.index(2)


def test_a_run_that_is_tried_again_goes_to_the_end_of_its_line(harness: WorkflowHarness):
    failing[0] = 1
    flow = workflow(app, name="test.keyed_again", concurrency_key=lambda **inputs: "one")(keyed)
    first, second, third = (harness.start(flow, customer="x", n=n) for n in range(3))
    harness.advance(seconds=15)
    assert (first.status, second.status) == ("failed", "running")

    first.retry()
    assert first.status == "pending"
    harness.advance(seconds=10)
    assert [run.status for run in (first, second, third)] == ["pending", "succeeded", "running"]
    harness.run_to_end()

    assert [run.status for run in (first, second, third)] == ["succeeded"] * 3
    assert told == [0, 1, 2, 0]


def test_a_run_that_waits_to_be_tried_again_can_be_cancelled(harness: WorkflowHarness):
    failing[0] = 1
    flow = workflow(app, name="test.keyed_cancelled", concurrency_key="one")(keyed)
    first, second = (harness.start(flow, customer="x", n=n) for n in range(2))
    harness.advance(seconds=15)
    first.retry()
    first.cancel()
    harness.run_to_end()

    assert (first.status, second.status, told) == ("cancelled", "succeeded", [0, 1])


def keyed(w: Builder, customer: str, n: int) -> Any:
    return w.step(act.s(n), after=w.sleep(10))


# The harness


@pytest.mark.parametrize("point", ["before_start", "after_effect_before_commit", "after_commit", "lease_lost"])
def test_a_crash_changes_nothing_but_how_often_a_task_ran(harness: WorkflowHarness, point: str):
    harness.crash_at(point, step="b", times=1)
    run = finished(harness, three)

    assert run.result() == "c"
    assert harness.executions.count(("b", None)) == (2 if point in ("after_effect_before_commit", "lease_lost") else 1)
    assert harness.executions.count(("c", None)) == 1


def test_a_point_that_is_unknown_is_refused(harness: WorkflowHarness):
    with pytest.raises(ValueError, match="'later' is none of"):
        harness.crash_at("later")


def test_starting_an_id_twice_gives_the_same_run(harness: WorkflowHarness):
    flow = made(three)
    one, other = harness.start(flow, _id="x"), harness.start(flow, _id="x")
    harness.run_to_end()

    assert one.id == other.id == "x"
    assert told == ["a", "b", "c"]


def test_a_task_that_a_step_sends_is_kept_for_the_test_to_see(harness: WorkflowHarness):
    def sending(w: Builder) -> Any:
        return w.step(send_another.s())

    assert finished(harness, sending).result() == "sent"
    assert [(sent.task, sent.args) for sent in harness.sent] == [("tests.workflow.tasks.double", (21,))]


def test_the_journal_tells_the_run(harness: WorkflowHarness):
    failing["b"] = 1
    run = finished(harness, three)

    picture = fold(run.journal)

    assert picture.state == "failed"
    assert {key.name: str(step.state) for key, step in picture.steps.items()} == states(run)


def test_the_graph_shows_the_states(harness: WorkflowHarness):
    run = finished(harness, three)

    assert 'n0["a: succeeded"]' in run.graph()
    assert '"b" -> "c"' in run.graph("dot")


def test_an_unknown_run_is_said_to_be_unknown(harness: WorkflowHarness):
    with pytest.raises(RunNotFoundError, match="no run nobody"):
        harness.get("nobody")


def test_the_fixture_runs_the_apps_workflows(workflow_harness: WorkflowHarness):
    run = workflow_harness.start(double.s(4))
    workflow_harness.run_to_end()

    assert run.result() == 8


@pytest.mark.parametrize(
    "moment",
    [
        lambda now: now + timedelta(hours=1),
        lambda now: (now + timedelta(hours=1)).replace(tzinfo=None),
        lambda now: (now + timedelta(hours=1)).isoformat(),
    ],
)
def test_a_step_says_until_when_to_sleep(harness: WorkflowHarness, moment: Any):
    until = moment(harness.now)
    run = harness.start(made(lambda w: w.step(add.s(1, 2), after=w.sleep_until(w.step(mark.s(until))[0]))))
    harness.advance(minutes=59)
    assert run.status == "running"
    harness.advance(minutes=1)
    assert run.status == "succeeded"


@pytest.mark.parametrize("much", [1e30, 10**40, float("inf"), float("nan"), "long"])
def test_a_time_that_never_comes_fails_the_step(harness: WorkflowHarness, much: Any):
    run = finished(harness, lambda w: [w.sleep(w.step(mark.s(much), name="a")[0], name="b")])

    assert states(run) == {"a": "succeeded", "b": "failed"}


def test_the_time_a_run_may_take_begins_with_its_start(harness: WorkflowHarness):
    later = made(lambda w: w.wait_for("go", timeout=None), timeout=60)
    run = harness.start(later.options(countdown=3600))
    harness.advance(minutes=60, seconds=59)
    assert run.status == "running"
    harness.advance(seconds=1)
    assert run.status == "failed"


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("first", ["before", "while"])
def test_a_child_that_somebody_has_retried_still_answers_its_parent(harness: WorkflowHarness, times: int, first: str):
    child = made(lambda w: w.wait_for("go", timeout=None))
    run = harness.start(made(lambda w: w.sub(child, name="sub")))
    harness.run_until_idle()
    [inner] = run.children()
    inner.cancel()
    harness.run_until_idle()
    assert run.status == "failed"
    for number in range(times):
        inner.retry()
        harness.run_until_idle()
        if number + 1 < times:
            inner.cancel()
            harness.run_until_idle()
    if first == "before":
        inner.signal("go", 7)
        harness.run_until_idle()
    run.retry()
    harness.run_until_idle()
    inner.signal("go", 7)
    harness.run_until_idle()

    assert (run.status, run.result()) == ("succeeded", 7)


def test_a_child_that_has_nothing_to_retry_says_so_again(harness: WorkflowHarness):
    child = made(lambda w: w.step(mark.s(1))["missing"])
    run = harness.start(made(lambda w: w.sub(child, name="sub")))
    harness.run_until_idle()
    assert run.status == "failed"
    run.retry()
    harness.run_until_idle()

    assert run.status == "failed"
    assert run.errors[-1]["error"].type == "ValueMissingError"


def test_a_workflow_as_an_ordinary_step_is_refused(harness: WorkflowHarness):
    """Its answer, a definition, would have been the step's result."""
    other = made(lambda w: w.step(mark.s(1)))
    run = finished(harness, lambda w: w.step(other.s(), name="a"))

    assert run.errors[-1]["error"].type == "WorkflowError"
    assert "sub() or expand()" in run.errors[-1]["error"].message
