"""How much work it is to change a run: few statements, whatever else the run has."""

from __future__ import annotations

from typing import Any

from celery_workflow.engine.decision import Decision
from celery_workflow.engine.definition import Call, Definition, Map, Sleep, Step
from celery_workflow.engine.memory import Message
from celery_workflow.engine.records import Key
from celery_workflow.engine.states import RunState
from celery_workflow.engine.values import Ref
from celery_workflow.runs.store import NewRun
from kombu_sqlqueue.sql.dialect import Capability

from ..statements import watching
from .graphs import task
from .recording import outcome_of
from .worlds import World


def outcome(world: World) -> int:
    """Lock, read; write the run, the steps and the journal, together where that can be."""
    return 2 + (1 if Capability.WRITES_TOGETHER in world.database.dialect.capabilities else 3)


def chain(world: World, length: int, *, id: str = "run") -> None:
    world.start(task("s0"), *(task(f"s{place}", Ref(f"s{place - 1}")) for place in range(1, length)), id=id)


def statements_of(world: World, message: Message, result: Any = None, **rest: Any) -> int:
    with watching(world.database) as statements:
        world.end(message, result, **rest)
    return len(statements)


def test_an_outcome_in_a_chain(world: World):
    chain(world, 100)
    world.succeed("s0", 0)
    assert [statements_of(world, world.effects.message(f"s{place}"), place) for place in range(1, 20)] == [
        outcome(world)
    ] * 19


def test_the_last_outcome_of_a_run_also_looks_whether_something_is_on_its_way_to_it(world: World):
    chain(world, 2)
    world.succeed("s0")
    assert statements_of(world, world.effects.message("s1")) == outcome(world) + 1


def test_an_attempt_that_fails_and_is_tried_again(world: World):
    world.start(task("a"), task("b", Ref("a")))
    assert statements_of(world, world.effects.message("a"), started=True) <= outcome(world)


def test_an_outcome_that_is_ignored_writes_nothing(world: World):
    chain(world, 3)
    event = outcome_of(world.effects.message("s0"), world.clock.now())
    world.succeed("s0")
    with watching(world.database) as statements:
        written = world.give(event)
    assert written.decision.ignored
    assert len(statements) == 2


def test_a_step_that_wants_the_results_of_many_reads_them_once(world: World):
    """The process remembers results of steps that are over."""
    wide = Step(
        name="m", action=Map(call=Call(task="tasks.m", args=(Ref("a"), Ref("b"))), items=list(range(30)), max_parallel=2)
    )
    world.start(task("a"), task("b"), wide)
    world.succeed("a", "large")
    world.succeed("b", "large, too")
    costs = [statements_of(world, world.effects.message("m", index)) for index in range(10)]
    assert max(costs[1:]) <= outcome(world) + 2


def test_one_item_of_many(world: World):
    """The first begins before the last is stored, and its outcome reads few rows."""
    world.start(Step(name="m", action=Map(call=Call(task="tasks.m"), items=list(range(2000)), max_parallel=20)))
    assert len(world.effects.messages) == 20
    assert world.store.steps("run")[0].inserted == 500
    seen: list[Any] = []

    def happening(now: int, view: Any) -> Any:
        seen.append(view)
        return outcome_of(world.effects.message("m", 3), now, "x")

    with watching(world.database) as statements:
        world.store.give("run", happening, world.effects)
    # The map is read besides the item.
    assert len(statements) <= outcome(world) + 1
    # The item, the map, the next item.
    assert len(seen[0]._rows) == 3


def test_a_chunk_of_items_is_a_few_statements(world: World):
    with watching(world.database) as statements:
        world.start(Step(name="m", action=Map(call=Call(task="tasks.m"), items=list(range(2000)), max_parallel=20)))
    assert len(statements) <= 25


def test_many_items_that_are_taken_back_are_a_few_statements(world: World):
    world.start(Step(name="m", action=Map(call=Call(task="tasks.m"), items=list(range(500)))))
    assert len(world.effects.messages) == 500
    assert statements_of(world, world.effects.message("m", 7), error="Planned") <= 20
    assert world.state() is RunState.FAILED


def test_a_step_that_many_follow_and_one_that_follows_many(world: World):
    names = [f"p{place}" for place in range(300)]
    world.start(task("first"), *(task(name, Ref("first")) for name in names), task("join", *map(Ref, names)))
    assert statements_of(world, world.effects.message("first")) <= 30
    assert statements_of(world, world.effects.message("p7")) <= outcome(world)
    for name in names:
        if name != "p7":
            world.succeed(name)
    assert world.effects.message("join")


def test_many_runs_are_created_by_a_few_statements(world: World):
    definition = Definition(name="w", steps=(task("a"),))
    new = [NewRun(id=str(number), definition=definition, labels={"n": str(number)}) for number in range(500)]
    with watching(world.database) as statements:
        world.store.create(new, world.effects)
    assert len(statements) <= 20


def test_a_timer_is_a_few_statements(world: World):
    [nap] = world.start(Step(name="nap", action=Sleep(seconds=0)), task("b", after=("nap",))).due
    with watching(world.database) as statements:
        assert world.store.deliver(nap, world.effects)
    assert len(statements) <= outcome(world) + 3


def test_a_large_result_is_not_read_with_the_rows(world: World):
    world.start(task("a"), task("b", after=("a",)), task("c", after=("b",)))
    world.succeed("a", "x" * 100_000)
    with watching(world.database) as statements:
        world.succeed("b")
    assert not any(statement.startswith("SELECT") and "workflow_step.result" in statement for statement, _ in statements)
    assert world.store.result("run", Key("a")) == "x" * 100_000


def test_nothing_is_read_for_what_has_not_happened(world: World):
    world.start(task("a"))
    with watching(world.database) as statements:
        written = world.store.give("run", lambda now, view: None, world.effects)
    assert written.decision == Decision(ignored="nothing happened")
    assert len(statements) == 1
