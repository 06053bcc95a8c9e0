"""A definition that exists is well formed, and says where it is not."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import FunctionType
from typing import Any
from uuid import UUID

import pytest

from celery_workflow import workflow
from celery_workflow.building.builder import Builder
from celery_workflow.building.refs import StepRef, plain
from celery_workflow.engine import drawing
from celery_workflow.engine.codec import from_json, to_json
from celery_workflow.engine.definition import Call, Definition, Step, Task
from celery_workflow.engine.policies import RetryPolicy
from celery_workflow.engine.states import StepState
from celery_workflow.engine.values import Condition, Ref, resolve
from celery_workflow.errors import DefinitionError

from .tasks import act, add, app, double, hear, mark


def once(w: Builder) -> None:
    w.step(mark.s("once"))


def inner_steps(w: Builder, letter: str) -> None:
    w.step(mark.s(letter))


inner = workflow(app, name="inner")(inner_steps)


def task(name: str, *args: Any, after: tuple[str, ...] = ()) -> Step:
    return Step(name=name, action=Task(call=Call(task=name, args=args)), after=after)


def test_steps_that_wait_for_each_other_are_refused_with_the_way_round():
    with pytest.raises(
        DefinitionError, match=r"steps wait for each other: (a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c)"
    ):
        Definition(name="w", steps=(task("a", Ref("c")), task("b", Ref("a")), task("c", after=("b",))))


def test_a_name_that_is_taken_is_refused_at_its_line():
    w = Builder("w")
    w.step(add.s(1, 2), name="sum")
    w.step(add.s(3, 4), name="sum")

    with pytest.raises(DefinitionError, match=r"test_definition\.py:\d+: step 'sum': 'sum' is already taken"):
        w.definition()


def test_a_step_that_is_unknown_is_refused_with_the_nearest():
    w = Builder("w")
    w.step(add.s(1, 2), name="charge")
    w.step(add.s(3, 4), name="ship", after="chrage")

    with pytest.raises(DefinitionError, match="step 'ship': there is no step 'chrage'; did you mean 'charge'"):
        w.definition()


def test_a_task_that_nobody_knows_is_refused():
    @workflow(app, name="missing")
    def missing(w: Builder) -> None:
        w.step(app.signature("tests.workflow.tasks.duoble", args=(1,)))

    with pytest.raises(DefinitionError, match=r"no task is called 'tests\.workflow\.tasks\.duoble'; did you mean .*double"):
        missing.build()


def test_a_task_of_another_program_can_be_named():
    @workflow(app, name="elsewhere", elsewhere={"other.task"})
    def elsewhere(w: Builder) -> None:
        w.step(app.signature("other.task"))

    assert elsewhere.build().steps[0].name == "task"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda w: w.step(add), "a step is a signature"),
        (lambda w: w.step(add.s(1) | double.s()), "a step is one task"),
        (lambda w: w.map(double, [1], max_parallel=0), "max_parallel is 0, but must be a number from 1 on"),
        (lambda w: w.map(double, [1], max_parallel="3"), "max_parallel is '3', but must be a number from 1 on"),
        (lambda w: w.map(double, "abc"), "a map needs a list, or a result that is one, not 'abc'"),
        (lambda w: w.sleep("1h"), "'1h' is no duration: give a timedelta, or seconds"),
        (lambda w: w.sleep_until("tomorrow"), "'tomorrow' is no moment: give a datetime, or ISO 8601"),
        (lambda w: w.wait_for("go", timeout="2 days"), "'2 days' is no duration"),
        (lambda w: w.step(add.s(1, 2), timeout="5m"), "'5m' is no duration"),
        (lambda w: w.step(add.s(1, 2), after=[5]), "after is [5], but must be a step, or a list of steps"),
        (lambda w: w.step(add.s(1, 2), after=5), "after is 5, but must be a step, or a list of steps"),
        (lambda w: w.map(double, [1], on_error="ignore"), "'ignore' is none of fail, finish, skip"),
        (lambda w: w.step(add.s(1), on_unmet="jump"), "'jump' is none of"),
        (lambda w: w.step(add.s(1), retry={"atempts": 3}), "{'atempts': 3} (atempts is none of delay, factor, jitter, max_"),
        (lambda w: w.step(add.s(1), retry=0), "not a retry policy"),
        (lambda w: w.step(add.s(1), name="$run"), "is no name for a step"),
        (lambda w: w.sub("inner"), "sub() runs a workflow that @workflow has declared, not 'inner'"),
        (
            lambda w: w.sub(inner, lettr="a"),
            "workflow 'inner' cannot have these inputs: missing a required argument: 'letter'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_declared(build: Any, message: str):
    def declare() -> None:
        w = Builder("w")
        build(w)
        w.definition()

    with pytest.raises(DefinitionError, match=re.escape(message)):
        declare()


def test_a_loop_over_a_result_says_what_there_is_for_it():
    rows = StepRef("load")["rows"]

    with pytest.raises(TypeError, match=re.escape("<result of load['rows']> is known when the workflow runs: w.map() runs")):
        list(rows)


def test_two_workflows_cannot_have_one_name():
    """Their task would be that of the first, whatever runs are started of."""
    where = r"test_definition\.py:\d+"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Celery 5.7 has its own word about it.
        workflow(app, name="twice")(once)
        again = FunctionType(once.__code__, {}, once.__name__)
        again.__module__ = "__main__"
        workflow(app, name="twice")(again)  # As in a module that is loaded again, or run by python -m.
        with pytest.raises(DefinitionError, match=f"{where}: a workflow 'twice' is declared at {where} already"):
            workflow(app, name="twice")(inner_steps)


def test_a_workflow_cannot_have_the_name_of_a_task():
    """A schedule or another program would run that task for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = workflow(app, name=add.name)(once)
        with pytest.raises(DefinitionError, match=r"test_definition\.py:\d+: a task is called '.*add' already"):
            named.build()


def test_a_setting_that_is_unknown_is_refused():
    with pytest.raises(DefinitionError, match=r"test_definition\.py:\d+: workflow 'typo' has no setting fail_fsat"):
        workflow(app, name="typo", fail_fsat=True)(lambda w: None)


def test_a_policy_that_is_none_is_refused_at_its_line():
    place = r"test_definition\.py:\d+: not a retry policy"
    with pytest.raises(DefinitionError, match=place):
        Builder("w").step(add.s(1), retry={"delay": -1})
    with pytest.raises(DefinitionError, match=place):
        workflow(app, name="typo", retry=0)(lambda w: None)


def test_an_input_that_does_not_fit_is_named():
    with pytest.raises(TypeError, match="the input 'letter' does not fit into JSON: Object of type object"):
        inner.options().new(letter=object())


def test_a_workflow_needs_its_app():
    with pytest.raises(TypeError, match=r"it is @workflow\(app\)"):
        workflow(once)  # type: ignore[arg-type]


def test_a_concurrency_key_knows_defaults_and_names_what_is_missing():
    def keyed(w: Builder, customer: str = "nobody") -> None: ...

    assert workflow(app, name="keyed", concurrency_key="c-{customer}")(keyed)._built()[1] == "c-nobody"
    with pytest.raises(DefinitionError, match=r"concurrency_key is 'c-\{client\}', and no input is called 'client'"):
        workflow(app, name="miskeyed", concurrency_key="c-{client}")(keyed)._built()


def test_the_options_of_a_step_are_those_of_its_message():
    w = Builder("w", queue="usual", retry=RetryPolicy(max_attempts=4))
    w.step(add.s(1, 2), name="a", timeout=timedelta(minutes=5), priority=7)
    w.step(add.s(1, 2).set(queue="own"), name="b", retry=1)
    w.step(add.s(1, 2).set(queue="own"), name="c", queue="special", compensate=hear.s())
    steps = w.definition().by_name

    assert [steps[name].call.options for name in "abc"] == [  # type: ignore[union-attr]
        {"time_limit": 300.0, "priority": 7, "queue": "usual"},
        {"queue": "own"},
        {"queue": "special"},
    ]
    assert [steps[name].retry.max_attempts for name in ("a", "b", "c", "hear")] == [4, 1, 4, 4]


def test_a_reference_is_an_edge_wherever_it_stands():
    w = Builder("w")
    a, b, c, d = (w.step(mark.s(letter), name=letter) for letter in "abcd")
    w.step(mark.s([a["x"]], {"deep": (b[0],)}, key=c), name="last", when=d > 3, after=a)

    assert set(w.definition().by_name["last"].needs) == {"a", "b", "c", "d"}


def test_a_reference_is_neither_true_nor_a_sequence():
    ref = StepRef("a")
    with pytest.raises(TypeError, match="known when the workflow runs"):
        bool(ref)
    with pytest.raises(TypeError):
        list(ref)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="combine by"):
        bool(ref > 3)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (lambda r: r["n"] > 3, True),
        (lambda r: r["n"] == 4, True),
        (lambda r: r["n"] != 4, False),
        (lambda r: (r["n"] >= 4) & (r["n"] < 4), False),
        (lambda r: (r["n"] <= 4) | (r["n"] < 4), True),
        (lambda r: ~r["flag"], True),
        (lambda r: r["n"].isin([3, 4]), True),
        (lambda r: r["flag"] | r["n"], True),
    ],
)
def test_conditions_mean_what_they_look_like(condition: Any, holds: bool):
    value = from_json(json.loads(json.dumps(to_json(plain(condition(StepRef("a")))))))

    assert bool(resolve(value, {"a": {"n": 4, "flag": False}}.get)) is holds


@pytest.mark.parametrize(
    "value", [{"$": "Ref", "step": "x"}, {"$": 1, "a": [{"$": 2}]}, {"a": {"$ref": "b"}}, [[], {}, None, 1.5]]
)
def test_a_users_own_value_is_never_taken_for_ours(value: Any):
    assert from_json(json.loads(json.dumps(to_json(value)))) == value


def test_the_fingerprint_is_of_the_shape_not_of_the_arguments():
    one = Definition(name="w", steps=(task("a", 1), task("b", Ref("a"), 2)))
    other = Definition(name="w", steps=(task("a", 9), task("b", Ref("a"), "x")))
    third = Definition(name="w", steps=(task("a", 1), task("b", 2, after=("a",))))

    assert one.fingerprint == other.fingerprint
    assert one.digest != other.digest
    assert one.fingerprint != third.fingerprint
    assert one.fingerprint != replace(one, version=2).fingerprint


class Money:
    """Looks the same, whatever it is."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __repr__(self) -> str:
        return "<money>"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Money(1), Money(2)),
        (Decimal("1.5"), "Decimal('1.5')"),
        (Decimal("1.5"), ["Decimal", "Decimal('1.5')"]),
        (b"a", "b'a'"),
    ],
)
def test_arguments_that_only_look_the_same_are_not_one_definition(one: object, other: object):
    assert Definition(name="w", steps=(task("a", one),)).digest != Definition(name="w", steps=(task("a", other),)).digest


@pytest.mark.parametrize("value", [Decimal("1.50"), UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), b"a"])
def test_arguments_of_known_classes_share_a_definition(value: object):
    assert Definition(name="w", steps=(task("a", value),)).digest == Definition(name="w", steps=(task("a", value),)).digest


def test_a_users_dataclass_is_not_taken_for_ours_of_that_name():
    @dataclass(frozen=True)
    class Ref:
        step: str

    assert type(to_json(Ref("a"))) is Ref


def test_a_thousand_steps_in_a_row_are_no_matter_of_recursion():
    steps = [task("s0"), *(task(f"s{n}", Ref(f"s{n - 1}")) for n in range(1, 3000))]

    assert len(Definition(name="long", steps=tuple(steps)).downstream({"s0"})) == 3000


def drawn() -> Definition:
    w = Builder("w")
    order = w.step(act.s('say "hi"'), name='the "first"', compensate=hear.s("undo"))
    w.wait_for("approved", timeout=None, after=order)
    return w.definition()


def test_a_workflow_is_drawn_as_mermaid():
    text = drawing.mermaid(drawn(), {'the "first"': StepState.SUCCEEDED})

    assert text.splitlines() == [
        "flowchart TD",
        '    n0["the #quot;first#quot;: succeeded"]',
        '    n1["hear (compensation)"]',
        '    n2["approved (signal)"]',
        "    n0 --> n2",
        "    n0 -.-> n1",
        "    style n0 fill:#c8e6c9",
    ]


def test_a_workflow_is_drawn_as_dot():
    text = drawing.dot(drawn())

    assert '"the \\"first\\"" -> "approved";' in text
    assert '"the \\"first\\"" -> "hear" [style=dashed];' in text
    assert text.startswith('digraph "w" {')
    assert text.endswith("}")


def test_what_a_name_has_in_it_does_not_break_the_picture():
    w = Builder("w")
    w.step(act.s(1), name="a <b>\n#1 & \\")

    assert drawing.mermaid(w.definition()).splitlines()[1:] == ['    n0["a #lt;b#gt;<br/>#35;1 #amp; \\"]']
    assert drawing.dot(w.definition()).splitlines()[1] == ('    "a <b>\\n#1 & \\\\" [shape=box, label="a <b>\\n#1 & \\\\"];')


def test_the_result_is_that_of_the_steps_no_other_needs():
    w = Builder("w")
    a = w.step(mark.s(1), name="a")
    w.step(mark.s(a), name="b")
    w.step(mark.s(a), name="c")

    assert w.definition().result == [Ref("b"), Ref("c")]


def test_a_condition_is_a_value():
    assert plain(StepRef("a") > 1) == Condition(">", (Ref("a"), 1))


@pytest.mark.parametrize(
    "retry",
    [
        {"max_attempts": 2.5},
        {"max_attempts": True},
        {"max_attempts": 3, "max_delay": None},
        {"max_attempts": 3, "max_delay": -1},
        {"max_attempts": 3, "delay": float("nan")},
        {"max_attempts": 3, "delay": 1e30, "max_delay": 1e30},
        {"max_attempts": 3, "factor": 1e30},
        {"max_attempts": 3, "until": "5"},
        {"max_attempts": 3, "until": timedelta(hours=1)},
        {"max_attempts": 3, "jitter": float("nan")},
    ],
)
def test_a_policy_that_would_break_when_it_is_needed_is_refused(retry: Any):
    """Its first failure could not be recorded: the run would stand still."""
    with pytest.raises(DefinitionError, match="not a retry policy"):
        Builder("w").step(add.s(1, 2), retry=retry)


def test_an_expanding_step_has_the_options_of_a_step():
    w = Builder("w")
    w.expand(add.s(1, 2), name="grow", timeout=5, queue="q", compensate=double.s(1))
    grown, undone = w.definition().steps

    assert grown.call is not None
    assert grown.call.options == {"time_limit": 5, "queue": "q"}
    assert undone.of == ("grow",)
    with pytest.raises(TypeError, match="retires"):
        w.expand(add.s(1, 2), retires=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("timeout", [0, -1, timedelta(0), float("nan")])
def test_a_time_limit_that_leaves_no_time_is_refused(timeout: Any):
    with pytest.raises(DefinitionError, match="would never run"):
        Builder("w").step(add.s(1, 2), timeout=timeout)


def test_a_reference_is_no_text():
    with pytest.raises(TypeError, match="known when the workflow runs"):
        f"{StepRef('order')['total']}"
    with pytest.raises(TypeError, match="known when the workflow runs"):
        str(StepRef("order"))
