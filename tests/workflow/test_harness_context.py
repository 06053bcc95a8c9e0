"""What a task sees in the harness is what it sees on a worker: itself, its memos, its transactions, other runs."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from celery_workflow import DuplicateRunError, NotInStepError, Permanent, Snooze, Workflows, current, durable, workflow
from celery_workflow.building.builder import Builder
from celery_workflow.runs.identity import HEADER, OWNER
from celery_workflow.runs.keeping import retention_of
from celery_workflow.runs.workflows import Workflow
from celery_workflow.signals import step_succeeded, workflow_finished
from celery_workflow.testing import HarnessRun, WorkflowHarness
from kombu_sqlqueue.errors import ConfigurationError

from .tasks import Planned, act, add, app, double, mark, told

_numbers = itertools.count()


def made(build: Any, **settings: Any) -> Workflow:
    # A name serves one workflow of an app only.
    return workflow(app, name=f"test.context_{next(_numbers)}", **settings)(build)


def finished(harness: WorkflowHarness, what: Any, **inputs: Any) -> HarnessRun:
    run = harness.start(what, **inputs)
    harness.run_to_end()
    return run


@app.task(name="test.say", bind=True)
def say(self: Any, *_: Any) -> dict[str, Any]:
    """All that a step can ask of itself."""
    step = current()
    assert current() is step
    told.append(step)
    return {
        "run": step.run_id,
        "workflow": step.workflow,
        "version": step.version,
        "step": step.step,
        "index": step.index,
        "attempt": step.attempt,
        "max_attempts": step.max_attempts,
        "epoch": step.epoch,
        "labels": dict(step.labels),
        "tenant": step.tenant,
        "header": sorted(getattr(self.request, HEADER)),
        "owner": getattr(self.request, OWNER),
    }


@app.task(name="test.outside")
def outside() -> str:
    """A task that is called, not sent, is no step."""
    try:
        current()
    except NotInStepError as error:
        return str(error)
    raise AssertionError


@app.task(name="test.call_another")
def call_another() -> str:
    return str(outside())


@app.task(name="test.remember")
def remember(what: str, failures: int = 0) -> int:
    number: int = current().memo(what, lambda: told.append(what) or told.count(what))
    if current().attempt <= failures:
        raise Planned(what)
    return number


@workflow(app, name="test.saying", version=7, retry={"max_attempts": 4})
def saying(w: Builder) -> Any:
    return w.step(say.s(), name="talk")


def test_a_step_knows_itself_and_its_run(harness: WorkflowHarness):
    started = harness.start(saying.options(id="my-run", labels={"customer": 7}, tenant="acme"))
    harness.run_to_end()

    said = started.result()
    header = said.pop("header")
    assert header == ["attempt", "epoch", "expands", "index", "max_attempts", "run", "step", "workflow"]
    assert said == {
        "run": "my-run",
        "workflow": "test.saying",
        "version": 7,
        "step": "talk",
        "index": None,
        "attempt": 1,
        "max_attempts": 4,
        "epoch": 1,
        "labels": {"customer": "7"},
        "tenant": "acme",
        "owner": "my-run",
    }


def test_an_item_knows_its_index_and_a_child_has_the_labels_of_its_parent(harness: WorkflowHarness):
    def parent(w: Builder) -> Any:
        return [w.map(say, [5, 6]), w.sub(saying)]

    run = finished(harness, made(parent).options(labels={"a": "b"}, tenant="acme"))

    items, child = run.result()
    assert [item["index"] for item in items] == [0, 1]
    assert (child["labels"], child["tenant"]) == ({"a": "b"}, "acme")
    assert child["run"] != run.id


def test_a_step_that_is_done_again_is_of_another_epoch(harness: WorkflowHarness):
    run = finished(harness, saying)
    run.rerun(from_step="talk")
    harness.run_to_end()

    assert (run.result()["epoch"], run.result()["attempt"]) == (2, 1)


def test_a_task_that_is_called_by_a_step_is_none_itself(harness: WorkflowHarness):
    run = finished(harness, call_another.s())

    assert run.result() == "current() is for the task of a workflow's step while it runs"
    with pytest.raises(NotInStepError):
        current()


# Memos


@pytest.mark.parametrize("point", ["after_effect_before_commit", "lease_lost", "after_commit"])
def test_a_memo_survives_a_crash(harness: WorkflowHarness, point: str):
    harness.crash_at(point)
    run = finished(harness, remember.s("dear"))

    assert run.result() == 1
    assert told == ["dear"]


def test_a_memo_survives_retries_and_is_forgotten_by_a_rerun(harness: WorkflowHarness):
    def twice(w: Builder) -> Any:
        return w.step(remember.s("dear", failures=2), name="dear", retry={"max_attempts": 3})

    run = finished(harness, made(twice))
    assert (run.steps()["dear"].attempt, run.result(), told) == (3, 1, ["dear"])

    run.rerun(from_step="dear")
    harness.run_to_end()

    assert (run.result(), told) == (2, ["dear", "dear"])


def test_memos_are_those_of_a_step_and_an_item(harness: WorkflowHarness):
    def several(w: Builder) -> Any:
        return [w.map(remember, ["x", "x"]), w.step(remember.s("x"))]

    assert sorted(finished(harness, made(several)).result()[0]) == [1, 2]
    assert told == ["x", "x", "x"]


def test_a_memo_has_to_fit_into_json(harness: WorkflowHarness):
    @app.task(name=f"test.unfit_{next(_numbers)}")
    def unfit() -> None:
        current().memo("unfit", lambda: object())

    assert finished(harness, unfit.s()).errors[0]["error"].type == "TypeError"


# Transactions

engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args={"check_same_thread": False})
Session = sessionmaker(engine)


@app.task(name="test.book")
def book(amount: int, trouble: str = "") -> str:
    with current().transaction(Session) as session:
        session.execute(sa.text("INSERT INTO booking VALUES (:amount)"), {"amount": amount})
        double.delay(amount)
        if trouble != "forgotten":
            current().complete({"booked": amount})
        if trouble == "inside":
            raise Planned("inside")
    if trouble == "after":
        raise Planned("after")
    return "what complete() was given counts"


@pytest.fixture
def bookings() -> Any:
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS booking"))
        connection.execute(sa.text("CREATE TABLE booking (amount INTEGER)"))

    def found() -> list[int]:
        with engine.connect() as connection:
            return [row.amount for row in connection.execute(sa.text("SELECT amount FROM booking"))]

    return found


@pytest.mark.parametrize("trouble", ["", "after"])
def test_a_step_is_what_it_completed_in_its_transaction(harness: WorkflowHarness, bookings: Any, trouble: str):
    run = finished(harness, book.s(5, trouble))

    assert run.result() == {"booked": 5}
    assert bookings() == [5]
    assert [sent.task for sent in harness.sent] == [double.name]


@pytest.mark.parametrize(("trouble", "error"), [("inside", "Planned"), ("forgotten", "WorkflowError")])
def test_of_a_transaction_that_is_rolled_back_nothing_counts(
    harness: WorkflowHarness, bookings: Any, trouble: str, error: str
):
    run = finished(harness, book.s(5, trouble))

    assert run.status == "failed"
    assert run.errors[0]["error"].type == error
    assert bookings() == []
    assert harness.sent == []


# Outcomes


@app.task(name="test.stubborn", bind=True, autoretry_for=(Exception,), retry_backoff=False, default_retry_delay=5)
def stubborn(self: Any, what: str) -> str:
    told.append((what, self.request.retries, current().attempt))
    if len(told) == 1:
        raise {"snooze": Snooze(60), "permanent": Permanent("no"), "planned": Planned("again")}[what]
    return "done"


@pytest.mark.parametrize(
    ("what", "status", "seen"),
    [
        ("snooze", "succeeded", [("snooze", 0, 1), ("snooze", 0, 2)]),
        ("planned", "succeeded", [("planned", 0, 1), ("planned", 1, 2)]),
        ("permanent", "failed", [("permanent", 0, 1)]),
    ],
)
def test_celerys_own_retries_mean_what_they_mean_on_a_worker(
    harness: WorkflowHarness, what: str, status: str, seen: list[Any]
):
    before = harness.now
    run = finished(harness, stubborn.s(what))

    assert (run.status, told) == (status, seen)
    assert harness.now - before == timedelta(seconds={"snooze": 60, "planned": 5, "permanent": 0}[what])


@app.task(name="test.later_here", bind=True)
def later_here(self: Any) -> str:
    """Names no zone, so the moment is in the app's, as everywhere in Celery."""
    if not self.request.retries:
        self.retry(eta=(datetime.now(UTC) + timedelta(seconds=30)).astimezone(app.timezone).replace(tzinfo=None))
    return "done"


def test_a_moment_without_a_zone_is_in_the_apps(harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(app.conf, "timezone", "Asia/Tokyo")
    monkeypatch.delitem(app.__dict__, "timezone", raising=False)
    before = harness.now
    try:
        run = finished(harness, later_here.s())
    finally:
        app.__dict__.pop("timezone", None)

    assert run.result() == "done"
    assert timedelta(seconds=25) < harness.now - before <= timedelta(seconds=30)


@app.task(name="test.give_back", bind=True)
def give_back(self: Any) -> None:
    self.retry(countdown=5, throw=False)
    if self.request.retries:
        told.append("second")


def test_a_task_that_goes_on_after_its_retry_is_tried_again(harness: WorkflowHarness):
    run = harness.start(give_back.s())
    harness.run_until_idle()
    assert run.status == "running"

    harness.advance(seconds=5)

    assert told == ["second"]


def test_a_result_that_does_not_fit_fails_as_on_a_worker(harness: WorkflowHarness):
    @app.task(name=f"test.unfit_{next(_numbers)}")
    def unfit() -> Any:
        return object()

    [error] = finished(harness, unfit.s()).errors
    assert (error["error"].type, "does not fit into JSON" in error["error"].message) == ("EncodeError", True)


# Starting


@app.task(name="test.start_another")
def start_another(run_id: str) -> Any:
    """As any code of an app that starts runs and looks for them."""
    run = saying.options(id=run_id, labels={"by": "step"}, countdown=60).start()
    return [run.id, run.status, Workflows(app).get(run_id).status, Workflows(app).get(run_id).progress()]


@app.task(name="test.signal_another")
def signal_another(run_id: str) -> bool:
    return Workflows(app).get(run_id).signal("go", {"by": "step"}, id="once")


def test_a_run_that_a_step_starts_is_the_harness_s(harness: WorkflowHarness):
    run = finished(harness, start_another.s("other"))

    assert run.result() == ["other", "pending", "pending", {"pending": 1, "total": 1}]
    assert harness.get("other").result()["labels"] == {"by": "step"}


def test_a_step_may_signal_another_run(harness: WorkflowHarness):
    waiting = harness.start(made(lambda w: w.wait_for("go", timeout=None)))
    finished(harness, signal_another.s(waiting.id))

    assert waiting.result() == {"by": "step"}


def test_the_task_of_a_workflow_that_a_step_sends_is_kept_as_any_other(harness: WorkflowHarness):
    @app.task(name=f"test.delays_{next(_numbers)}")
    def delays() -> None:
        saying.delay()

    finished(harness, delays.s())

    assert [sent.task for sent in harness.sent] == ["test.saying"]
    assert len(harness.store.runs) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_conflict": "ignore"}, "on_conflict is 'ignore'"),
        ({"id": ""}, "id is empty"),
        ({"concurrency_key": ""}, "concurrency_key is empty"),
        ({"priority": "high"}, "priority is 'high'"),
        ({"priority": True}, "priority is True"),
        ({"labels": "by"}, "labels are 'by'"),
        ({"eta": datetime(2026, 1, 3)}, "an aware datetime"),
        ({"eta": datetime(2026, 1, 3, tzinfo=UTC), "countdown": 3}, "not both"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_anything_starts(options: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        saying.options(**options)


@pytest.mark.parametrize(
    ("given", "kept_for"),
    [
        (3600, timedelta(hours=1)),
        (0, timedelta(0)),
        (timedelta(days=1), timedelta(days=1)),
        (None, None),
        ("30d", "workflow_retention is '30d'"),
        (True, "workflow_retention is True"),
        (-1, "workflow_retention is"),
    ],
)
def test_how_long_runs_are_kept_is_a_number_of_seconds_a_timedelta_or_for_ever(given: Any, kept_for: Any):
    conf = {"workflow_retention": given}
    if isinstance(kept_for, str):
        with pytest.raises(ConfigurationError, match=kept_for):
            retention_of(conf)
    else:
        assert retention_of(conf) == kept_for


def test_a_start_with_options_is_what_it_is_elsewhere(harness: WorkflowHarness):
    later = harness.start(saying.options(id="later", countdown=timedelta(hours=1)))
    dated = harness.start(saying.options(eta=datetime(2026, 1, 3, tzinfo=UTC)))
    harness.run_until_idle()
    assert (later.status, dated.status) == ("pending", "pending")

    harness.advance(hours=1)
    assert (later.status, dated.status) == ("succeeded", "pending")
    harness.advance(days=3)
    assert dated.status == "succeeded"

    assert harness.start(saying.options(id="later")).status == "succeeded"
    with pytest.raises(DuplicateRunError, match="there is a run later already"):
        harness.start(saying.options(id="later", on_conflict="raise"))


def test_a_run_that_starts_later_takes_its_place_in_the_line_then(harness: WorkflowHarness):
    def one(w: Builder, name: str) -> Any:
        return w.sleep(100, after=w.step(act.s(name)))

    flow = made(one, concurrency_key="one")
    harness.start(flow.options(countdown=50), name="later")
    harness.start(flow, name="first")
    harness.advance(seconds=60)
    harness.start(flow, name="last")
    assert told == ["first"]

    harness.run_to_end()

    assert told == ["first", "later", "last"]


def test_a_canvas_starts_with_options_too(harness: WorkflowHarness):
    run = finished(harness, durable(add.s(1, 2) | say.s(), name="sum").options(labels={"of": "two"}))

    assert (run.result()["labels"], run.result()["workflow"]) == ({"of": "two"}, "sum")


def test_the_priority_of_a_run_is_that_of_its_steps(harness: WorkflowHarness):
    harness.start(made(lambda w: w.step(act.s("low"))))
    harness.start(made(lambda w: w.step(act.s("high"))).options(priority=5))
    harness.run_until_idle()

    assert told == ["high", "low"]


def test_a_workflow_of_another_app_is_refused(harness: WorkflowHarness):
    from celery import Celery

    other = Celery("another", set_as_current=False)
    with pytest.raises(ValueError, match="is of the app 'another'"):
        harness.start(workflow(other, name="x")(lambda w: w.step(mark.s())))


def test_an_app_that_runs_tasks_where_they_are_called_may_be_tested(harness: WorkflowHarness):
    app.conf.task_always_eager = True
    try:
        assert finished(harness, saying).status == "succeeded"
    finally:
        app.conf.task_always_eager = False


def test_receivers_of_signals_are_told_as_on_a_worker(harness: WorkflowHarness):
    heard: list[Any] = []

    def hear(sender: Any, run: str, entry: Any, **_: Any) -> None:
        heard.append((sender, run, entry.name, entry.state))

    workflow_finished.connect(hear)
    step_succeeded.connect(hear)
    run = finished(harness, saying.options(id="heard"))

    assert run.status == "succeeded"
    assert heard == [(app, "heard", "talk", "succeeded"), (app, "heard", None, "succeeded")]
