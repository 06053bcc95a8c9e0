"""Random workflows, and what becomes of them by rules written down once more, as plainly as can be."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from celery_workflow.engine.definition import (
    Action,
    Call,
    Definition,
    Gather,
    Map,
    OnItemError,
    Role,
    Sleep,
    Step,
    Task,
    Wait,
)
from celery_workflow.engine.policies import Otherwise, RetryPolicy
from celery_workflow.engine.values import Condition, Ref

#: How often the attempts of a step, or of an item of a map, fail before one succeeds.
Failures = dict[str, int]


@dataclass(repr=False)
class Plan:
    """A workflow and how its tasks behave."""

    definition: Definition
    failures: Failures = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"fail_fast={self.definition.fail_fast}\n" + "\n".join(
            f"{step.name} fails {self.failures.get(step.name, 0)} of {step.retry.max_attempts}: {step.action} needs {step.needs}"
            f" when {step.when} else {step.on_unmet}, spent {step.on_exhausted}"
            for step in self.definition.steps
        )

    def fails(self, name: str, index: int | None, failures: int) -> bool:
        planned = self.failures.get(name, 0)
        # Every third item of a map fails as the plan says, the others never.
        return failures < planned if index is None or index % 3 == 0 else False


def task(name: str, *args: Any, **rest: Any) -> Step:
    return Step(name=name, action=Task(call=Call(task=f"tasks.{name}", args=args)), **rest)


def child_of(name: str) -> Definition:
    """What a step that expands comes to."""
    first = task(f"{name}_one", role=Role.MAIN)
    return Definition(
        name="child",
        steps=(first, task(f"{name}_two", Ref(first.name)), Step(name=f"{name}_nap", action=Sleep(seconds=5))),
        result=Ref(f"{name}_two"),
    )


def result_of(name: str, args: Sequence[Any]) -> str:
    """What a task of a plan returns: what it was given, or, where that is long, something that follows from it."""
    text = f"{name}{[*args]}"
    return text if len(text) < 200 else f"{name}#{zlib.crc32(text.encode()):08x}"


@st.composite
def plans(
    draw: st.DrawFn, *, fail_fast: bool | None = None, failing: bool = True, compensated: bool = True, most: int = 9
) -> Plan:
    """Acyclic by construction: a step needs only those before it. There are at most so many, without handlers."""
    steps: list[Step] = []
    failures: Failures = {}
    for number in range(draw(st.integers(1, most))):
        name = f"s{number}"
        steps.append(draw(_steps(name, [step.name for step in steps])))
        failures[name] = draw(st.sampled_from([0, 0, 0, 1, 5])) if failing else 0
    undoing = [_undoing(step.name) for step in steps if compensated and draw(st.booleans())]
    handlers = [
        task("told", Ref("$run"), role=Role.ON_FAILURE),
        task("glad", Ref("$run", ("result",)), role=Role.ON_SUCCESS),
    ]
    definition = Definition(
        name="random",
        steps=(*steps, *undoing, *handlers),
        result=[Ref(step.name) for step in steps],
        fail_fast=draw(st.booleans()) if fail_fast is None else fail_fast,
    )
    return Plan(definition, failures)


@st.composite
def _steps(draw: st.DrawFn, name: str, before: list[str]) -> Step:
    needs = draw(st.lists(st.sampled_from(before), max_size=3, unique=True)) if before else []
    refs = [Ref(need) for need in needs if draw(st.booleans())]
    when: Any = True
    if before and draw(st.integers(0, 4)) == 0:
        when = Condition(draw(st.sampled_from(["is", "not"])), (Ref(draw(st.sampled_from(before))),))
    return Step(
        name=name,
        action=draw(_actions(name, refs)),
        after=tuple(need for need in needs if Ref(need) not in refs),
        when=when,
        on_unmet=draw(st.sampled_from([Otherwise.SKIP, Otherwise.SKIP_CASCADE, Otherwise.FAIL])),
        on_exhausted=draw(st.sampled_from([Otherwise.FAIL, Otherwise.FAIL, Otherwise.SKIP, Otherwise.SKIP_CASCADE])),
        retry=RetryPolicy(max_attempts=draw(st.integers(1, 3)), jitter=0.5),
    )


@st.composite
def _actions(draw: st.DrawFn, name: str, refs: list[Ref]) -> Action:
    call = Call(task=f"tasks.{name}", args=tuple(refs))
    kind = draw(st.sampled_from(["task"] * 5 + ["map", "sleep", "wait", "gather", "expand"]))
    if kind == "expand":
        return Task(call=call, expands=True)
    if kind == "map":
        return Map(
            call=call,
            items=list(range(draw(st.integers(0, 7)))),
            max_parallel=draw(st.sampled_from([None, 1, 2])),
            on_error=draw(st.sampled_from(list(OnItemError))),
        )
    if kind == "sleep":
        return Sleep(seconds=draw(st.integers(0, 1000)))
    if kind == "wait":
        return Wait(signal=name, timeout=None)
    return Gather(value=refs) if kind == "gather" else Task(call=call)


def _undoing(name: str) -> Step:
    return task(f"undo_{name}", Ref(name), role=Role.COMPENSATION, of=(name,))


def expected(plan: Plan) -> dict[str, str]:
    """The final states of a run that finishes all that does not need what failed, worked out in one pass."""
    states: dict[str, str] = {}
    cascading: set[str] = set()
    truthy: dict[str, bool] = {}
    for step in plan.definition.main:
        if any(states[need] in ("failed", "upstream_failed") for need in step.needs):
            states[step.name] = "upstream_failed"
        elif any(need in cascading for need in step.needs):
            states[step.name] = "skipped"
            cascading.add(step.name)
        else:
            _expect(plan, step, states, cascading, truthy)
    return states


def _expect(plan: Plan, step: Step, states: dict[str, str], cascading: set[str], truthy: dict[str, bool]) -> None:
    states[step.name], otherwise = "succeeded", None
    if isinstance(step.when, Condition):
        holds = truthy.get(step.when.values[0].step, False) is (step.when.test == "is")
        otherwise = None if holds else step.on_unmet
    if otherwise is None and _is_spent(plan, step):
        otherwise = step.on_exhausted
    if otherwise is not None:
        states[step.name] = "failed" if otherwise is Otherwise.FAIL else "skipped"
        cascading |= {step.name} if otherwise is Otherwise.SKIP_CASCADE else set()
    truthy[step.name] = states[step.name] == "succeeded" and _is_true(step)


def _is_spent(plan: Plan, step: Step) -> bool:
    if isinstance(step.action, Map):
        fatal = step.action.on_error is not OnItemError.SKIP and len(step.action.items) > 0
        return fatal and plan.failures[step.name] >= step.retry.max_attempts
    return isinstance(step.action, Task) and plan.failures[step.name] >= step.retry.max_attempts


def _is_true(step: Step) -> bool:
    """Whether the result counts as true: tasks return text, sleeps nothing, signals text, the others lists."""
    if isinstance(step.action, Map):
        return len(step.action.items) > 0
    if isinstance(step.action, Gather):
        return len(step.action.value) > 0
    return not isinstance(step.action, Sleep)
