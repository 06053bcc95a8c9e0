"""The `celery workflow` commands about runs, as an operator types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_workflow import Run, Workflows, workflow
from celery_workflow.building.builder import Builder
from celery_workflow.commands import workflow as command
from celery_workflow.engine.events import StepFailed, StepStarted, StepSucceeded
from celery_workflow.engine.policies import Error
from celery_workflow.runs.runtime import runtime_of
from kombu_sqlqueue.clock import FakeClock

DATABASES = ["sqlite", "postgresql"]
Typed = Callable[..., Result]


@pytest.fixture
def typed(app: Celery) -> Typed:
    return lambda *arguments: CliRunner().invoke(command, arguments, obj=SimpleNamespace(app=app))


@pytest.fixture
def fulfil(app: Celery) -> Any:
    """A workflow that is declared in the app, as `-A` finds it."""

    @app.task(name="charge", shared=False)
    def charge(order_id: int) -> None: ...

    @app.task(name="ship", shared=False)
    def ship(order_id: int) -> None: ...

    @app.task(name="refund", shared=False)
    def refund(order_id: int) -> None: ...

    @workflow(app, name="orders.fulfil", version=3)
    def fulfil(w: Builder, order_id: int, express: bool = False) -> Any:
        paid = w.step(charge.s(order_id), compensate=refund.s(order_id))
        approved = w.wait_for("approved", timeout=timedelta(days=2), after=paid)
        return w.step(ship.s(order_id), after=approved)

    return fulfil


def told(run: Run, step: str, *, error: str | None = None, attempt: int = 1, epoch: int = 1, result: Any = None) -> None:
    """As a worker would report of a step."""
    which = {"name": step, "index": None, "epoch": epoch, "attempt": attempt}

    def event(now: int) -> Any:
        if error is None:
            return StepSucceeded(at=now, **which, result=result or {"of": step})
        return StepFailed(at=now, **which, error=Error(type="CardDeclined", message=error))

    runtime = runtime_of(run.async_result().app)
    runtime.tell(run.id, lambda now: StepStarted(at=now, **which))
    runtime.tell(run.id, event)


def failed(fulfil: Any, order_id: int, **options: Any) -> Run:
    run: Run = fulfil.options(**options).start(order_id=order_id)
    told(run, "charge", error="no funds")
    return run


def test_a_run_is_started_with_all_that_was_typed(typed: Typed, fulfil: Any, app: Celery):
    done = typed(
        *("start", "orders.fulfil", "--input", "order_id=42", "--input", "express=true", "--id", "order-42"),
        *("--label", "customer=7", "--tenant", "acme", "--eta", "2030-01-31T12:00:00+00:00", "--priority", "5", "--json"),
    )

    assert json.loads(done.output) == {"id": "order-42", "workflow": "orders.fulfil"}
    stored = Workflows(app).get("order-42").stored
    assert (stored.inputs, stored.labels) == ({"order_id": 42, "express": True}, {"customer": "7"})
    assert (stored.tenant, stored.priority, stored.record.state) == ("acme", 5, "pending")


def test_what_is_typed_as_an_input_may_be_a_plain_text(typed: Typed, fulfil: Any, app: Celery):
    run_id = typed("start", "orders.fulfil", "--input", "order_id=A-7").output.strip()

    assert Workflows(app).get(run_id).stored.inputs == {"order_id": "A-7"}


def test_runs_are_listed_by_what_they_are(typed: Typed, fulfil: Any):
    failed(fulfil, 1, id="one", labels={"customer": "7"})
    fulfil.options(id="two", labels={"customer": "7", "kind": "b"}, tenant="acme").start(order_id=2)
    waiting = fulfil.options(id="three").start(order_id=3)
    told(waiting, "charge")

    def ids(*arguments: str) -> list[str]:
        return [row["id"] for row in json.loads(typed("list", "--json", *arguments).output)]

    assert ids() == ["three", "two", "one"]
    assert ids("--name", "orders.fulfil", "--status", "failed") == ["one"]
    assert ids("--status", "failed", "--status", "running") == ["three", "two", "one"]
    assert ids("--label", "customer=7") == ["two", "one"]
    assert ids("--label", "customer=7", "--label", "kind=b") == ["two"]
    assert ids("--tenant", "acme") == ["two"]
    assert ids("--waiting", "signal") == ["three"]
    assert ids("--waiting", "timer") == []
    assert ids("--failed-step", "charge") == ["one"]
    assert ids("--name", "another") == []


def test_a_listing_says_how_to_go_on(typed: Typed, fulfil: Any):
    for order in range(3):
        fulfil.options(id=f"order-{order}").start(order_id=order)

    first = typed("list", "--limit", "2")
    assert "order-2  orders.fulfil  running" in first.stdout
    cursor = first.stderr.strip().removeprefix("there may be more: --cursor ")
    second = typed("list", "--limit", "2", "--cursor", cursor)

    assert "order-0  orders.fulfil" in second.stdout
    assert "order-1" not in second.stdout
    assert second.stderr == ""
    assert typed("list", "--name", "none").output == "no runs\n"


def test_a_run_is_shown_with_its_steps_and_what_went_wrong(typed: Typed, fulfil: Any):
    run = fulfil.options(id="order-42", labels={"customer": "7"}).start(order_id=42)
    told(run, "charge")

    shown = typed("show", "order-42").output
    assert "orders.fulfil" in shown
    assert '{"order_id": 42}' in shown
    assert '{"customer": "7"}' in shown
    assert ["approved", "awaiting", "-", "2026-05-07", "12:00:00"] in [line.split() for line in shown.splitlines()]
    assert "errors" not in shown

    said = json.loads(typed("show", "order-42", "--json", "--journal").output)
    assert (said["status"], said["version"], said["inputs"]) == ("running", 3, {"order_id": 42})
    steps = {step["name"]: step for step in said["steps"]}
    assert (steps["charge"]["status"], steps["charge"]["result"], steps["charge"]["attempt"]) == (
        "succeeded",
        {"of": "charge"},
        1,
    )
    assert steps["approved"]["waits_until"] == "2026-05-07T12:00:00+00:00"
    states = [(each["step"], each["state"]) for each in said["journal"]]
    assert states[0] == (None, "pending")
    assert [state for step, state in states if step == "charge"] == ["sent", "running", "succeeded"]


def test_a_run_that_succeeded_is_shown_with_its_result(typed: Typed, fulfil: Any):
    run = fulfil.options(id="order-42").start(order_id=42)
    told(run, "charge")
    assert "result" not in typed("show", "order-42").output
    run.signal("approved")
    told(run, "ship", result={"parcels": ["p"] * 1000})

    [shown] = [line for line in typed("show", "order-42").output.splitlines() if line.startswith("result ")]
    assert shown.split(maxsplit=1)[1].startswith('{"parcels": ["p", "p"')
    assert (shown[-1], len(shown) < 1100) == ("…", True)
    assert json.loads(typed("show", "order-42", "--json").output)["result"] == {"parcels": ["p"] * 1000}


def test_a_failed_run_is_shown_with_its_error_and_its_journal(typed: Typed, fulfil: Any):
    failed(fulfil, 1, id="order-1")

    shown = typed("show", "order-1", "--journal").output
    assert ["failed_step", "charge"] in [line.split() for line in shown.splitlines()]
    assert "CardDeclined: no funds" in shown
    assert "journal" in shown
    assert json.loads(typed("show", "order-1", "--json").output)["errors"][0]["error"]["message"] == "no funds"


def test_the_graph_of_a_run_is_drawn(typed: Typed, fulfil: Any):
    fulfil.options(id="order-42").start(order_id=42)

    assert typed("graph", "order-42").output.startswith("flowchart TD\n")
    assert "charge: sent" in typed("graph", "order-42", "--mermaid").output
    assert typed("graph", "order-42", "--dot").output.startswith('digraph "orders.fulfil"')


def test_a_signal_is_sent_once_for_an_id(typed: Typed, fulfil: Any):
    run = fulfil.options(id="order-42").start(order_id=42)
    told(run, "charge")

    first = typed("signal", "order-42", "approved", '{"by": "ann"}', "--signal-id", "click-1")
    second = typed("signal", "order-42", "approved", '{"by": "bob"}', "--signal-id", "click-1")

    assert (first.exit_code, first.output) == (0, "signal approved is with run order-42\n")
    assert (second.exit_code, second.output) == (0, "run order-42 has had a signal of id click-1 already: ignored\n")
    assert run.steps()["approved"].result == {"by": "ann"}


def test_a_signal_that_no_step_waits_for_is_kept_and_says_so(typed: Typed, fulfil: Any):
    run = fulfil.options(id="order-1").start(order_id=1)

    said = typed("signal", "order-1", "aproved").output

    assert said == "signal aproved is with run order-1\nno step of it waits for that, but for approved\n"
    assert run.status == "running"


def test_a_signal_to_a_run_that_is_over_is_kept_and_says_so(typed: Typed, fulfil: Any):
    failed(fulfil, 1, id="order-1")

    assert "which ended as failed: it is kept" in typed("signal", "order-1", "approved").output


def test_a_run_is_cancelled_once(typed: Typed, fulfil: Any):
    run = fulfil.options(id="order-42").start(order_id=42)

    assert typed("cancel", "order-42", "--reason", "changed my mind", "--no-children").output == (
        "run order-42 is cancelled\n"
    )
    assert run.stored.record.reason == "changed my mind"
    again = typed("cancel", "order-42")
    assert (again.exit_code, again.output) == (1, "Error: run order-42 is cancelled: there is nothing left to cancel\n")


def test_a_failed_run_is_tried_again_and_a_step_done_again(typed: Typed, fulfil: Any):
    run = failed(fulfil, 1, id="order-1")

    assert typed("retry", "order-1").output == "run order-1 is running\n"
    told(run, "charge", epoch=2)
    run.signal("approved")
    told(run, "ship", epoch=2)
    assert run.status == "succeeded"

    assert typed("rerun", "order-1", "--from-step", "ship", "--scope", "step").output == "run order-1 is running\n"
    steps = run.steps()
    assert (steps["ship"].epoch, steps["charge"].epoch) == (3, 2)


def test_old_runs_are_deleted(typed: Typed, fulfil: Any, clock: FakeClock):
    failed(fulfil, 1, id="old")
    clock.advance(timedelta(days=8))
    failed(fulfil, 2, id="new")
    fulfil.options(id="unfinished").start(order_id=3)

    assert json.loads(typed("prune", "--older-than", "7", "--json").output) == {"deleted": 1}
    assert typed("prune", "--older-than", "7").output == "0 runs deleted\n"
    assert {row["id"] for row in json.loads(typed("list", "--json").output)} == {"new", "unfinished"}


def test_a_run_whose_message_is_gone_is_found_and_moved(typed: Typed, fulfil: Any, app: Celery, clock: FakeClock):
    fulfil.options(id="order-42").start(order_id=42)
    assert typed("reconcile").output == "nothing stands still\n"

    app.control.purge()
    clock.advance(timedelta(minutes=2))
    found = typed("reconcile").output

    assert found == "run order-42: the message of step charge is gone, sending it again\n"
    assert json.loads(typed("reconcile", "--json").output) == []


def test_watching_a_run_that_is_over_tells_all_and_how_it_ended(typed: Typed, fulfil: Any):
    failed(fulfil, 1, id="bad")
    good = fulfil.options(id="good").start(order_id=2)
    told(good, "charge")
    good.signal("approved")
    told(good, "ship")

    bad = typed("watch", "bad")
    assert bad.exit_code == 1
    assert "charge failed (" in bad.output
    assert ": CardDeclined: no funds\n" in bad.output
    watched = typed("watch", "good", "--json")
    assert watched.exit_code == 0
    entries = [json.loads(line) for line in watched.output.splitlines()]
    assert (entries[-1]["step"], entries[-1]["state"]) == (None, "succeeded")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "nothing"), "there is no run 'nothing': celery workflow list shows those there are"),
        (("watch", "nothing"), "there is no run 'nothing'"),
        (("signal", "nothing", "go"), "there is no run 'nothing'"),
        (("graph", "orders.fulfil"), "'orders.fulfil' is a workflow, and this needs the id of a run of it"),
        (("start", "orders.fulfill"), "the app has no workflow 'orders.fulfill'; did you mean orders.fulfil?"),
        (("start", "x"), "the app has no workflow 'x'; there are: orders.fulfil"),
        (("start", "orders.fulfil"), "missing 1 required positional argument: 'order_id'"),
        (("start", "orders.fulfil", "--input", "order_id"), "--input 'order_id' must be NAME=JSON"),
        (("start", "orders.fulfil", "--input", "order_id=1", "--id", "there"), "there is a run there already"),
        (("start", "orders.fulfil", "--input", "order_id=1", "--eta", "soon"), "'soon' is no moment like 2030-01-31"),
        (("list", "--label", "customer"), "--label 'customer' must be KEY=VALUE"),
        (("retry", "there"), "run there is running: only what is over can be done again"),
        (("rerun", "there", "--scope", "step"), "--scope step needs the step to do again: --from-step STEP"),
        (("rerun", "over", "--from-step", "shop"), "run over has no step 'shop' to begin at"),
    ],
)
def test_what_is_wrong_is_one_line(typed: Typed, fulfil: Any, arguments: tuple[str, ...], says: str):
    fulfil.options(id="there").start(order_id=1)
    failed(fulfil, 1, id="over")

    done = typed(*arguments)

    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert says in done.output
    assert done.output.count("\n") == 1


def test_an_app_without_workflows_says_how_to_name_one_that_has_some(typed: Typed):
    done = typed("start", "orders.fulfil")

    assert (done.exit_code, "name the app that declares it by celery -A APP" in done.output) == (1, True)
