"""Several at once: each thing happens once, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

from celery_workflow.engine.definition import Call, Definition, Map, Step, Task
from celery_workflow.engine.events import CancelRequested, RetryRequested, StepSucceeded
from celery_workflow.engine.invariants import faults
from celery_workflow.engine.memory import Message
from celery_workflow.engine.records import Key
from celery_workflow.engine.states import RunState
from celery_workflow.engine.values import Ref
from celery_workflow.runs.store import NewRun, Query

from .graphs import child_of, task
from .recording import outcome_of
from .worlds import World

T = TypeVar("T")

ROUNDS = 8
SINGLE = Definition(name="w", steps=(task("s"),))


def together(*works: Callable[[], T]) -> list[T]:
    """What they answer who all begin at the same moment."""
    barrier = threading.Barrier(len(works))

    def begin(work: Callable[[], T]) -> T:
        barrier.wait(timeout=30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [each.result(timeout=60) for each in [pool.submit(begin, work) for work in works]]


def sound(world: World, *run_ids: str) -> None:
    for run_id in run_ids:
        stored, rows = world.store.whole(run_id)
        assert faults(stored.definition, stored.record, rows) == []


def finish(world: World) -> None:
    """Let everything that is sent succeed, until nothing is left to do."""
    while True:
        world.deliver_all()
        messages = list(world.effects.messages.values())
        if not messages:
            return
        for message in messages:
            world.end(message, "done")


def test_two_outcomes_of_one_run_are_both_counted(world: World):
    parts = [f"p{number}" for number in range(4)]

    def once(number: int) -> None:
        world.start(*(task(part) for part in parts), task("join", *(Ref(part) for part in parts)), id=f"run {number}")
        together(*(lambda part=part: world.succeed(part, part, run_id=f"run {number}") for part in parts))
        assert world.effects.message("join", run_id=f"run {number}").send.args == tuple(parts)
        sound(world, f"run {number}")

    for number in range(ROUNDS):
        once(number)


def test_an_outcome_that_is_given_twice_at_once_counts_once(world: World):
    def once(number: int) -> None:
        world.start(task("a"), task("b", Ref("a")), id=f"run {number}")
        event = outcome_of(world.effects.message("a", run_id=f"run {number}"), world.clock.now(), 1)
        written = together(*[lambda: world.store.give(f"run {number}", lambda now, view: event, world.effects)] * 3)
        assert sorted(bool(each.decision.ignored) for each in written) == [False, True, True]

    for number in range(ROUNDS):
        once(number)


def test_items_of_a_map_that_end_at_once(world: World):
    items = Map(call=Call(task="tasks.m"), items=list(range(24)), max_parallel=6)
    world.start(Step(name="m", action=items), result=Ref("m"))
    for first in range(0, 24, 6):
        together(*(lambda index=index: world.succeed("m", index, index=index) for index in range(first, first + 6)))
    assert world.store.result("run", Key("$run")) == list(range(24))
    sound(world, "run")


def test_of_two_who_create_one_id_one_does(world: World):
    def once(number: int) -> None:
        new = NewRun(id=f"run {number}", definition=SINGLE, labels={"k": "v"})
        created = together(*[lambda: world.store.create([new], world.effects)] * 4)
        assert Counter(written is not None for [written] in created) == {True: 1, False: 3}

    for number in range(ROUNDS):
        once(number)
    assert world.count("run") == world.count("label") == ROUNDS


def test_two_who_create_the_same_many(world: World):
    new = [NewRun(id=f"run {number}", definition=SINGLE) for number in range(40)]
    one, other = together(
        lambda: world.store.create(new, world.effects), lambda: world.store.create(new[20:], world.effects)
    )
    assert [bool(written) for written in one] == [True] * 20 + [not written for written in other]
    assert world.count("run") == 40


def test_of_those_who_create_runs_of_one_key_one_starts(world: World):
    def once(number: int) -> None:
        new = [NewRun(id=f"{number} {place}", definition=SINGLE, concurrency_key=f"key {number}") for place in range(4)]
        created = together(*(lambda each=each: world.store.create([each], world.effects)[0] for each in new))
        states = Counter(written.decision.run.state for written in created if written and written.decision.run)
        assert states == {RunState.RUNNING: 1, RunState.PENDING: 3}

    for number in range(ROUNDS):
        once(number)


def test_those_who_create_runs_of_several_keys_do_not_block_each_other(world: World):
    def create(name: str, keys: list[str]) -> Any:
        new = [NewRun(id=f"{name} {key}", definition=SINGLE, concurrency_key=key) for key in keys]
        return world.store.create(new, world.effects)

    keys = [str(number) for number in range(6)]
    together(lambda: create("one", keys), lambda: create("other", keys[::-1]), lambda: create("third", keys))
    finish(world)
    assert all(world.state(f"{name} {key}") is RunState.SUCCEEDED for name in ("one", "other", "third") for key in keys)
    assert world.count("line") == world.count("waiter") == 0


def test_twenty_runs_of_one_key_one_after_the_other(world: World):
    order: list[str] = []
    new = [NewRun(id=str(number), definition=SINGLE, concurrency_key="k") for number in range(20)]
    world.store.create(new, world.effects)
    lock = threading.Lock()

    def begin() -> Message | None:
        with lock:
            for message in list(world.effects.messages.values()):
                if not message.leased:
                    message.leased = True
                    order.append(message.run_id)
                    return message
        return None

    def work() -> None:
        while len(order) < 20:
            world.deliver_all()
            if (message := begin()) is not None:
                # The transaction that sends it may not be over.
                assert found_running() in ([], [message.run_id])
                world.end(message)

    def found_running() -> list[str]:
        return [listed.id for listed in world.store.find(Query(states=[RunState.RUNNING]))]

    together(work, work, work)
    assert order == [str(number) for number in range(20)]
    assert {world.state(str(number)) for number in range(20)} == {RunState.SUCCEEDED}


def test_what_is_due_is_delivered_once(world: World):
    definition = Definition(name="w", steps=(task("a"),))
    start_at = world.clock.now() + 1_000_000
    world.store.create([NewRun(id=str(n), definition=definition, start_at=start_at) for n in range(30)], world.effects)
    world.clock.advance(timedelta(seconds=1))
    due = world.store.due(100)
    assert len(due) == 30

    def deliver() -> list[int]:
        return [event for event in due if world.store.deliver(event, world.effects) is not None]

    delivered = [event for each in together(deliver, deliver, deliver, deliver) for event in each]
    while left := world.store.due(100):
        # Passed over by all, while others looked at it.
        delivered += [event for event in left if world.store.deliver(event, world.effects) is not None]
    assert sorted(delivered) == sorted(due)
    assert {world.state(str(number)) for number in range(30)} == {RunState.RUNNING}


def test_a_cancel_against_an_outcome(world: World):
    def once(number: int) -> None:
        run_id = f"run {number}"
        world.start(task("a"), task("b", Ref("a")), id=run_id)
        message = world.effects.message("a", run_id=run_id)
        together(
            lambda: world.end(message, 1),
            lambda: world.give(CancelRequested(at=world.clock.now()), run_id),
        )
        finish(world)
        assert world.state(run_id) is RunState.CANCELLED
        sound(world, run_id)

    for number in range(ROUNDS):
        once(number)


def test_parent_and_child_that_end_at_once(world: World):
    grow = Step(name="grow", action=Task(call=Call(task="tasks.grow"), expands=True))

    def once(number: int) -> None:
        run_id = f"run {number}"
        world.start(grow, task("other"), id=run_id)
        world.give(StepSucceeded(at=world.clock.now(), name="grow", expansion=SINGLE), run_id)
        [child] = world.store.children(run_id)
        mine, its = world.effects.message("other", run_id=run_id), world.effects.message("s", run_id=child)
        together(
            lambda: [world.end(mine, error="Planned"), world.deliver_all()],
            lambda: [world.end(its), world.deliver_all()],
        )
        finish(world)
        assert world.state(run_id) is RunState.FAILED
        assert world.state(child).is_over
        sound(world, run_id, child)

    for number in range(ROUNDS):
        once(number)


def test_many_children_end_while_their_parent_is_cancelled(world: World):
    items = Map(call=Call(task="tasks.m"), items=list(range(6)))
    world.start(Step(name="m", action=items))
    for index in range(6):
        world.give(StepSucceeded(at=world.clock.now(), name="m", index=index, expansion=child_of(f"c{index}")))
    children = world.store.children("run")
    assert len(children) == 6
    messages = [world.effects.message(f"c{index}_one") for index in range(3)]
    together(
        lambda: [world.give(CancelRequested(at=world.clock.now())), world.deliver_all()],
        *(lambda message=message: [world.end(message), world.deliver_all()] for message in messages),
    )
    finish(world)
    assert world.state() is RunState.CANCELLED
    assert all(world.state(child).is_over for child in children)
    sound(world, "run", *children)


def test_a_retry_and_a_new_run_of_the_same_key(world: World):
    def once(number: int) -> None:
        key, old, new = f"key {number}", f"old {number}", f"new {number}"
        world.start(task("s"), id=old, concurrency_key=key)
        world.fail_run(old)
        together(
            lambda: world.give(RetryRequested(at=world.clock.now(), epoch=1), old),
            lambda: world.start(task("s"), id=new, concurrency_key=key),
        )
        assert {world.state(old), world.state(new)} == {RunState.RUNNING, RunState.PENDING}
        finish(world)
        assert {world.state(old), world.state(new)} == {RunState.SUCCEEDED}

    for number in range(ROUNDS):
        once(number)


def test_runs_are_created_while_others_are_pruned(world: World):
    """A definition that nobody needs is deleted, but not under the hands of who is about to use it."""

    def create(number: int) -> None:
        for place in range(10):
            world.start(task("s"), id=f"{number} {place}")
            world.succeed("s", run_id=f"{number} {place}")

    def prune() -> None:
        for _ in range(20):
            world.store.prune(older_than=-timedelta(seconds=1), limit=10)

    together(lambda: create(1), lambda: create(2), prune)
    for listed in world.store.find(Query()):
        assert world.store.get(listed.id).definition == SINGLE
    world.store.prune(older_than=-timedelta(seconds=1), limit=100)
    assert [world.count(table) for table in ("run", "step", "journal", "definition")] == [0, 0, 0, 0]
