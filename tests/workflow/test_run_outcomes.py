"""Every way in which a task can end is an outcome of its step, on a real worker with processes."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_workflow import InvalidTransitionError, Run, RunFailedError, durable

from ..celery.workers import eventually
from .run_app import CardDeclined
from .run_sites import RunSite, of_each_step

#: The engines differ in how a message is settled and withdrawn, which other modules show.
DATABASES = ["postgresql"]


def failed(site: RunSite, run: Run, kind: str, said: str = "") -> Run:
    """The run has failed with this error."""
    site.ended(run)
    error = run.stored.record.error
    assert (run.status, error.type) == ("failed", kind), error
    assert said in error.message
    return run


# -- the task's own end -----------------------------------------------------------------------


def test_a_chain_of_steps_ends_with_the_last_result(working_site: RunSite):
    site = working_site
    run = site.run(
        site.tasks.echo.s(1), site.tasks.echo.s({"when": datetime(2026, 1, 1, tzinfo=UTC), "much": Decimal("1.50")})
    )

    assert run.result(60) == {"when": datetime(2026, 1, 1, tzinfo=UTC), "much": Decimal("1.50")}
    assert of_each_step(run) == {("echo", None): 1, ("echo-2", None): 1}
    assert run.async_result().get(timeout=30) == run.result(1)
    eventually(lambda: site.messages() == 0)


def test_each_step_has_a_result_of_its_own_in_celery(working_site: RunSite):
    site = working_site
    run = site.ended(site.run(site.tasks.echo.s("one"), site.tasks.quiet.s("ignored")))

    steps = run.steps()
    assert AsyncResult(steps["echo"].task_id, app=site.app).get(timeout=30) == "one"
    assert AsyncResult(steps["quiet"].task_id, app=site.app).state == "PENDING"
    assert steps["quiet"].result == "ignored"
    assert run.result(1) == "ignored"


@pytest.mark.parametrize("canvas", ["chain", "chord", "group", "nested"])
def test_a_canvas_gives_what_celery_gives(working_site: RunSite, canvas: str):
    add, total, tasks = working_site.tasks.add, working_site.tasks.total, working_site.tasks
    made, expected = {
        "chain": (chain(add.s(1, 2), add.s(3)), 6),
        "chord": (chord([add.s(n, n) for n in range(4)], total.s()), 12),
        "group": (group(add.s(n, n) for n in range(3)), [0, 2, 4]),
        "nested": (chain(add.s(1, 1), group(add.s(1), chain(add.s(2), add.s(3))), total.s(), tasks.echo.s()), 10),
    }[canvas]
    assert durable(made, app=working_site.app).start().result(60) == expected


def test_a_failure_fails_the_run_with_its_own_exception(working_site: RunSite):
    run = failed(working_site, working_site.run(working_site.tasks.fail.s("told")), "ValueError", "told")

    assert run.stored.record.failed_step == "fail"
    with pytest.raises(ValueError, match="told"):
        run.async_result().get(timeout=30)
    with pytest.raises(RunFailedError, match="told"):
        run.result(1)
    with pytest.raises(ValueError, match="told"):
        AsyncResult(run.steps()["fail"].task_id, app=working_site.app).get(timeout=30)
    assert "on_purpose" in run.errors[-1]["error"].traceback or "raise ValueError" in run.errors[-1]["error"].traceback


def test_an_exception_that_cannot_be_pickled_keeps_its_name(working_site: RunSite):
    """A policy that names it, or a class it is derived from, holds."""
    site = working_site
    before = len(site.marks("decline"))
    run = site.run(site.tasks.decline.s(), retry={"max_attempts": 3, "delay": 0, "no_retry_on": CardDeclined})

    failed(site, run, "CardDeclined", "51: no money")
    assert len(site.marks("decline")) == before + 1


def test_a_policy_tries_again(working_site: RunSite):
    site = working_site
    run = site.run(site.tasks.flaky.s("policy", 2), retry={"max_attempts": 3, "delay": 0.05})

    assert run.result(60) == "policy"
    assert [(entry["attempt"], entry["error"].message) for entry in run.errors] == [(1, "attempt 1"), (2, "attempt 2")]
    assert site.marks("try policy") == ["try policy"] * 3
    # What was told of the failed attempts yields to the end.
    assert AsyncResult(run.steps()["flaky"].task_id, app=site.app).get(timeout=30) == "policy"


def test_a_policy_that_is_spent_fails_the_run(working_site: RunSite):
    site = working_site
    failed(site, site.run(site.tasks.flaky.s("spent", 9), retry={"max_attempts": 2, "delay": 0}), "ValueError", "attempt 2")
    assert len(site.marks("try spent")) == 2


def test_celerys_own_retries_keep_their_arguments_and_count(working_site: RunSite):
    site = working_site
    assert site.run(site.tasks.retried.s(1)).result(60) == [3, 20, 2]


def test_so_do_those_of_a_task_without_a_result(working_site: RunSite):
    site = working_site
    run = site.ended(site.run(site.tasks.retried_quietly.s(1)))

    assert run.status == "succeeded"
    assert [mark for mark in site.marks() if mark.startswith("quietly")] == [
        f"quietly {n + 1} {n * 10} {n}" for n in range(3)
    ]


@pytest.mark.parametrize("failures", [2, 4])
def test_autoretry_counts_to_its_limit(working_site: RunSite, failures: int):
    run = working_site.run(working_site.tasks.autoretried.s(failures))
    if failures <= 3:
        assert run.result(60) == failures
    else:
        failed(working_site, run, "ValueError", "retry 3")


def test_a_retry_that_is_spent_fails_with_its_exception(working_site: RunSite):
    failed(working_site, working_site.run(working_site.tasks.spent.s()), "KeyError")
    assert len(working_site.marks("spent")) == 3


@pytest.mark.parametrize("task", ["snoozes", "snoozes_auto"])
def test_a_snooze_spends_no_attempt(working_site: RunSite, task: str):
    run = working_site.run(getattr(working_site.tasks, task).s(3))

    assert run.result(60) == 4
    assert run.errors == []


@pytest.mark.parametrize(("task", "kind"), [("permanent", "CardDeclined"), ("permanent_auto", "Permanent")])
def test_a_permanent_failure_is_not_tried_again(working_site: RunSite, task: str, kind: str):
    site = working_site
    said = task.replace("_", " ")
    failed(site, site.run(getattr(site.tasks, task).s(), retry={"max_attempts": 4, "delay": 0}), kind)
    assert len(site.marks(said)) == 1


def test_an_ignored_task_is_done_without_a_result(working_site: RunSite):
    site = working_site
    assert site.run(site.tasks.ignore.s(), site.tasks.echo.s("after")).result(60) == "after"


@pytest.mark.parametrize("task", ["reject", "reject_late"])
def test_a_rejected_task_has_failed(working_site: RunSite, task: str):
    site = working_site
    failed(site, site.run(getattr(site.tasks, task).s(False)), "Reject")
    eventually(lambda: site.messages() == 0)


def test_a_task_that_is_put_back_is_run_again(working_site: RunSite):
    site = working_site
    assert site.run(site.tasks.reject_once.s()).result(60) == "taken"


@pytest.mark.parametrize("task", ["reject", "reject_late"])
def test_a_task_that_is_put_back_for_ever_fails_in_the_end(working_site: RunSite, task: str):
    site = working_site
    failed(site, site.run(getattr(site.tasks, task).s(True)), "WorkerLostError", "put back")


def test_a_result_that_cannot_be_stored_fails_its_step(working_site: RunSite):
    failed(working_site, working_site.run(working_site.tasks.unsayable.s()), "EncodeError")


def test_wrong_arguments_are_a_failure_of_the_step(working_site: RunSite):
    """Found where the task is run: the run that sends it, in the transaction of another step, is none the worse."""
    site = working_site
    failed(site, site.run(site.tasks.echo.s(1), site.tasks.add.s(1, 2, 3)), "TypeError")


def test_arguments_that_the_tasks_serializer_cannot_say_are_a_failure_of_the_step(working_site: RunSite):
    site = working_site
    run = site.run(site.tasks.echo.s("before"), site.tasks.echo.s(1).set(serializer="unknown"))
    failed(site, run, "SerializerNotInstalled")
    assert run.steps()["echo"].status == "succeeded"
    assert site.run(site.tasks.echo.s("next")).result(60) == "next"


def test_a_message_that_a_worker_may_not_decode_is_a_failure_of_the_step(working_site: RunSite):
    site = working_site
    failed(site, site.run(site.tasks.echo.s(1).set(serializer="pickle")), "WorkerLostError", "refused")
    assert site.flows.reconcile(quiet_for=timedelta(0)) == []


# -- what is put in its place -----------------------------------------------------------------


@pytest.mark.parametrize(("kind", "expected"), [("single", 3), ("chain", 13), ("group", [0, 2, 4]), ("chord", 6)])
@pytest.mark.parametrize("how", ["replace", "expand"])
def test_a_canvas_takes_the_place_of_a_step(working_site: RunSite, how: str, kind: str, expected: Any):
    site = working_site

    @site.workflow
    def flow(w: Any) -> Any:
        step = w.step(site.tasks.replace.s(kind)) if how == "replace" else w.expand(site.tasks.expand.s(kind))
        return w.step(site.tasks.echo.s(step))

    run = flow.start()
    assert run.result(60) == expected
    [child] = run.children()
    assert child.status == "succeeded"


def test_a_canvas_that_fails_fails_the_step(working_site: RunSite):
    failed(working_site, working_site.run(working_site.tasks.replace.s("failing")), "ValueError", "inside")


def test_what_is_no_canvas_fails_the_step_that_expands(working_site: RunSite):
    site = working_site
    run = site.workflow(lambda w: w.expand(site.tasks.expand.s("nothing"))).start()
    failed(site, run, "DefinitionError")


# -- what others do to it ---------------------------------------------------------------------


def test_a_soft_time_limit_fails_the_step(working_site: RunSite):
    site = working_site
    failed(site, site.run(site.tasks.slow.s("soft", 30).set(soft_time_limit=0.3)), "SoftTimeLimitExceeded")
    assert site.marks("end soft") == []


@pytest.mark.parametrize("task", ["slow", "slow_late"])
def test_a_hard_time_limit_fails_the_step(working_site: RunSite, task: str):
    site = working_site
    failed(site, site.run(getattr(site.tasks, task).s(f"hard {task}", 30), timeout=0.5), "TimeLimitExceeded")
    eventually(lambda: site.messages() == 0)
    assert site.marks(f"begin hard {task}") == [f"begin hard {task}"]


def test_a_step_that_took_too_long_is_tried_again_by_its_policy(working_site: RunSite):
    site = working_site
    run = site.run(site.tasks.slow_late.s("again", 30), timeout=0.5, retry={"max_attempts": 2, "delay": 0})
    failed(site, run, "TimeLimitExceeded")
    assert len(site.marks("begin again")) == 2


def test_what_an_operator_revokes_before_it_begins_fails(working_site: RunSite):
    site = working_site
    run = site.run(site.tasks.echo.s(1).set(countdown=2))
    site.app.control.revoke(run.steps()["echo"].task_id)
    failed(site, run, "TaskRevokedError", "revoked")


@pytest.mark.parametrize("task", ["slow", "slow_late"])
def test_what_an_operator_terminates_fails(working_site: RunSite, task: str):
    site = working_site
    text = f"terminated {task}"
    run = site.run(getattr(site.tasks, task).s(text, 60), site.tasks.note.s(f"after {text}"))
    eventually(lambda: site.marks(f"begin {text}"))
    site.app.control.revoke(run.steps()[task].task_id, terminate=True)
    failed(site, run, "TaskRevokedError", "terminated")
    eventually(lambda: site.messages() == 0)
    assert (site.marks(f"end {text}"), site.marks(f"after {text}")) == ([], [])
    assert of_each_step(run, "failed") == {(task, None): 1}


def test_a_task_that_has_expired_fails(working_site: RunSite):
    site = working_site
    run = site.run(site.tasks.note.s("expired").set(expires=datetime.now(UTC) - timedelta(seconds=5)))
    failed(site, run, "TaskRevokedError", "expired")
    assert site.marks("expired") == []


def test_a_task_that_no_worker_knows_waits(working_site: RunSite):
    site = working_site
    unknown = site.app.signature("unknown_task")
    run = site.workflow(lambda w: w.step(unknown), elsewhere=["unknown_task"]).start()
    eventually(lambda: [dead for dead in site.dead() if dead.task == "unknown_task"])
    assert run.status == "running"
    assert site.flows.reconcile(quiet_for=timedelta(0)) == []
    assert run.cancel("nobody knows it")
    site.ended(run)
    assert run.status == "cancelled"


def test_a_rerun_changes_celerys_result_of_the_run(working_site: RunSite):
    site = working_site
    run = site.run(site.tasks.note.s("rerun"))
    assert run.async_result().get(timeout=30) == "rerun"
    date_done = run.async_result().date_done
    run.rerun()
    site.ended(run)
    assert run.stored.record.epoch == 2
    assert (site.marks("rerun"), run.result(30)) == (["rerun"] * 2, "rerun")
    eventually(lambda: run.async_result().date_done not in (None, date_done))
    assert run.async_result().get(timeout=30) == "rerun"


def test_a_run_that_failed_goes_on_from_what_failed(working_site: RunSite):
    """J07: what succeeded is not run again."""
    site = working_site
    gate = site.directory / "mended"
    run = site.run(site.tasks.note.s("kept"), site.tasks.broken.s("bug", str(gate)), site.tasks.note.s("then"))
    failed(site, run, "ValueError")
    gate.touch()
    run.retry()
    assert run.result(60) == "then"
    assert (site.marks("kept"), site.marks("then")) == (["kept"], ["then"])
    assert run.async_result().get(timeout=30) == "then"
    with pytest.raises(InvalidTransitionError):
        run.retry()


def test_a_cancelled_run_is_revoked_to_celery(working_site: RunSite):
    site = working_site
    run = site.run(site.tasks.echo.s(1).set(countdown=100))
    assert run.cancel("not wanted")
    assert site.ended(run).status == "cancelled"
    with pytest.raises(TaskRevokedError, match="not wanted"):
        run.async_result().get(timeout=30)
    assert not run.cancel()


def test_one_of_ten_branches_fails(working_site: RunSite):
    """J09: the others are finished, what joins them is not run."""
    site = working_site

    @site.workflow(fail_fast=False)
    def flow(w: Any) -> Any:
        branches = [w.step(site.tasks.echo.s(n), name=f"b{n}") for n in range(9)]
        branches.append(w.step(site.tasks.fail.s("branch"), name="bad"))
        return w.step(site.tasks.total.s(branches), name="join")

    run = site.ended(flow.start())
    states = {name: step.status for name, step in run.steps().items()}
    assert states == {**{f"b{n}": "succeeded" for n in range(9)}, "bad": "failed", "join": "upstream_failed"}
    assert run.progress() == {"succeeded": 9, "failed": 1, "upstream_failed": 1, "total": 11}


# -- what a step's task is told ---------------------------------------------------------------


def test_options_of_the_task_and_of_the_step_are_kept(working_site: RunSite):
    site = working_site
    by_task = site.run(site.tasks.facts_with_options.s()).result(60)
    assert (by_task["queue"], by_task["priority"]) == ("special", 7)
    by_step = site.run(site.tasks.facts.s(), queue="special", priority=3, timeout=20).result(60)
    assert (by_step["queue"], by_step["priority"], by_step["timelimit"]) == ("special", 3, [20, None])


def test_a_run_has_a_priority_for_steps_without_one(working_site: RunSite):
    site = working_site

    @site.workflow
    def flow(w: Any) -> Any:
        return [
            w.step(site.tasks.facts.s()),
            w.step(site.tasks.facts.s(), priority=1),
            w.expand(site.tasks.expand.s("single")),
        ]

    run = flow.options(priority=6).start()
    assert [each["priority"] for each in run.result(60)[:2]] == [6, 1]
    [child] = run.children()
    assert child.stored.priority == 6


def test_headers_stamps_and_the_root_reach_the_task(working_site: RunSite):
    site = working_site
    signature = site.tasks.facts.s().set(headers={"colour": "blue"})
    signature.stamp(order="42")
    run = site.run(signature)
    told = run.result(60)
    assert told["id"] == run.steps()["facts"].task_id
    assert (told["root_id"], told["colour"]) == (run.id, "blue")
    assert told["stamps"]["order"] in ("42", ["42"])


def test_a_step_knows_what_it_is(working_site: RunSite):
    site = working_site

    @site.workflow(version=3, name="telling")
    def flow(w: Any) -> Any:
        return w.step(site.tasks.about.s(), name="asked", retry=4)

    run = flow.options(labels={"customer": "7"}, tenant="acme").start()
    assert run.result(60) == {
        "run": run.id,
        "workflow": "telling",
        "step": "asked",
        "index": None,
        "attempt": 1,
        "max_attempts": 4,
        "epoch": 1,
        "version": 3,
        "labels": {"customer": "7"},
        "tenant": "acme",
    }


def test_runs_are_found_by_what_they_were_started_with(working_site: RunSite):
    site = working_site
    flow = site.workflow(lambda w, x: w.step(site.tasks.echo.s(x)), name=f"found{os.getpid()}")
    mine = flow.options(labels={"who": "me"}, tenant="acme").start(x=1)
    other = flow.options(labels={"who": "you"}, tenant="other").start(x=2)
    bad = site.workflow(lambda w: w.step(site.tasks.fail.s()), name="bad").start()
    for run in (mine, other, bad):
        site.ended(run)
    assert [each.id for each in site.flows.runs(name=flow.name)] == [other.id, mine.id]
    assert [each.id for each in site.flows.runs(name=flow.name, labels={"who": "me"})] == [mine.id]
    assert [each.id for each in site.flows.runs(name=flow.name, tenant="other", status="succeeded")] == [other.id]
    assert bad.id in [each.id for each in site.flows.runs(failed_step="fail", status="failed")]
