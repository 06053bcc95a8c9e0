"""What the contract of the store of runs says of changes, on each database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_workflow.engine.definition import Call, Definition, Map, OnItemError, Sleep, Step, Task, Wait
from celery_workflow.engine.events import (
    CancelRequested,
    RerunRequested,
    RetryRequested,
    SignalReceived,
)
from celery_workflow.engine.policies import Otherwise
from celery_workflow.engine.records import Key, Parent
from celery_workflow.engine.states import RunState
from celery_workflow.engine.values import Ref
from celery_workflow.errors import InvalidTransitionError, RunNotFoundError
from celery_workflow.runs.store import NewRun, Query
from celery_workflow.sql.runs import SQLRunStore
from celery_workflow.sql.schema import Tables

from .graphs import child_of, task
from .recording import JSONText, Recorder, outcome_of
from .worlds import World


def test_a_chain_from_its_first_step_to_its_result(world: World):
    created = world.start(task("a"), task("b", Ref("a")), result=Ref("b"), inputs={"x": 1}, labels={"team": "red"})
    assert created.decision.run.state is RunState.RUNNING
    assert world.states() == {"a": "sent"}
    world.succeed("a", {"total": 3})
    assert world.effects.message("b").send.args == ({"total": 3},)
    world.succeed("b", [1, None])

    stored = world.store.get("run")
    assert stored.record.state is RunState.SUCCEEDED
    assert (stored.inputs, stored.labels) == ({"x": 1}, {"team": "red"})
    assert world.store.result("run", Key("$run")) == [1, None]
    assert world.store.result("run", Key("a")) == {"total": 3}
    assert world.effects.ends == [("run", [1, None])]
    told = [(entry.name, entry.state) for _, entry in world.store.journal("run")]
    assert told == [
        *[(None, "pending"), (None, "running"), ("a", "sent"), ("a", "succeeded"), ("b", "sent"), ("b", "succeeded")],
        (None, "succeeded"),
    ]


def expanding(name: str, **rest: Any) -> Step:
    return Step(name=name, action=Task(call=Call(task=f"tasks.{name}"), expands=True), **rest)


def mapping(name: str, items: Any, **rest: Any) -> Step:
    return Step(name=name, action=Map(call=Call(task=f"tasks.{name}"), items=items, **rest))


# -- create -----------------------------------------------------------------------------------


def test_an_id_has_one_run(world: World):
    one, other = (
        NewRun(id="a", definition=Definition(name="w", steps=(task("s"),))),
        NewRun(id="b", definition=Definition(name="w", steps=(task("s"),))),
    )
    assert [bool(written) for written in world.store.create([one], world.effects)] == [True]
    assert [bool(written) for written in world.store.create([one, other, other], world.effects)] == [False, True, False]
    assert len(world.effects.messages) == 2
    assert world.store.create([], world.effects) == []


def test_many_runs_are_numbered_in_the_order_in_which_they_were_given(world: World):
    definition = Definition(name="w", steps=(task("s"),))
    ids = [f"run {number * 7 % 600}" for number in range(600)]
    created = world.store.create([NewRun(id=each, definition=definition) for each in ids], world.effects)

    assert all(written is not None and written.decision.run.state is RunState.RUNNING for written in created)
    assert [listed.id for listed in world.store.find(Query(), limit=1000)][::-1] == ids
    assert len(world.effects.messages) == 600


def test_equal_definitions_are_stored_once(world: World):
    world.start(task("s"), id="a")
    world.start(task("s"), id="b")
    world.start(task("s", 1), id="c")

    assert world.count("definition") == 2
    assert world.store.get("a").definition == world.store.get("b").definition
    assert world.store.get("c").definition.by_name["s"].action.call.args == (1,)


def test_a_run_that_starts_later_waits_for_that(world: World):
    written = world.start(task("s"), start_at=world.clock.now() + 5_000_000)
    assert written.due == ()
    assert world.state() is RunState.PENDING
    assert world.store.next_due() == timedelta(seconds=5)
    assert world.after(4) == []
    [admitted] = world.after(1)
    assert admitted.decision.run.state is RunState.RUNNING
    assert world.store.get("run").record.started_at == world.clock.now()
    assert world.store.next_due() is None


def test_a_start_in_the_past_is_now(world: World):
    world.start(task("s"), start_at=world.clock.now())
    assert world.state() is RunState.RUNNING


def test_a_run_that_is_cancelled_before_its_start_never_starts(world: World):
    world.start(task("s"), start_at=world.clock.now() + 5_000_000)
    world.give(CancelRequested(at=world.clock.now()))

    assert world.state() is RunState.CANCELLED
    assert world.after(10) == []
    assert world.effects.messages == {}


def test_what_cannot_be_stored_stores_nothing(world: World):
    definition = Definition(name="w", steps=(task("s"),))
    for wrong in (
        {"id": "a\0b"},
        {"id": "a" * 256},
        {"labels": {"k": "v" * 256}},
        {"labels": {"k\0": "v"}},
        {"tenant": "\0"},
        {"concurrency_key": "k" * 256},
    ):
        with pytest.raises(ValueError, match="cannot be stored"):
            world.store.create([NewRun(**{"id": "ok", "definition": definition} | wrong)], world.effects)
    with pytest.raises(ValueError, match="step"):
        world.start(task("s" * 256))
    with pytest.raises(TypeError):
        world.start(task("s"), inputs={"x": object()})
    assert world.store.find(Query()) == []
    assert world.effects.messages == {}


def test_text_comes_back_as_it_was(world: World):
    odd = "\0 \u2028 \U0001f600 ' \" % %s :x \\"
    plain = odd.replace("\0", "")
    world.start(task("a", odd), id=plain, labels={plain: plain}, tenant=plain, inputs={odd: odd})
    world.succeed("a", {odd: odd})

    stored = world.store.get(plain)
    assert (stored.labels, stored.tenant, stored.inputs) == ({plain: plain}, plain, {odd: odd})
    assert world.store.result(plain, Key("a")) == {odd: odd}
    assert [listed.id for listed in world.store.find(Query(labels={plain: plain}, tenant=plain))] == [plain]


# -- give -------------------------------------------------------------------------------------


def test_what_has_happened_is_told_by_who_sees_the_locked_run(world: World):
    world.start(task("a"), task("b", Ref("a")))
    seen: list[Any] = []

    def happening(now: int, view: Any) -> None:
        seen.append((now, view.run.state, view.steps([Key("a"), Key("b")]), view.definition.name))

    written = world.store.give("run", happening, world.effects)
    assert (written.decision.ignored, written.decision.run) == ("nothing happened", None)
    [(now, state, steps, name)] = seen
    assert (now, state, list(steps), name) == (world.clock.now(), RunState.RUNNING, [Key("a")], "w")
    assert "settle" not in world.effects.calls


def test_a_run_that_is_not_there(world: World):
    for ask in (
        lambda: world.give(CancelRequested(at=0), "none"),
        lambda: world.store.get("none"),
        lambda: world.store.steps("none"),
        lambda: world.store.progress("none"),
        lambda: world.store.result("none", Key("a")),
        lambda: world.store.result("none", Key("a", 1)),
        lambda: world.store.results("none", ["a"]),
        lambda: world.store.whole("none"),
        lambda: world.store.keep_memo("none", Key("a"), "m", 1),
    ):
        with pytest.raises(RunNotFoundError, match="none"):
            ask()
    assert world.store.items("none", "a") == world.store.journal("none") == world.store.signals("none") == []


def test_the_message_is_settled_before_anything_else(world: World):
    world.start(task("a"), task("b", Ref("a")))
    world.effects.calls.clear()
    world.succeed("a")
    assert world.effects.calls == ["settle", "decided", "send"]


def test_an_outcome_of_which_somebody_else_has_the_message_writes_nothing(world: World):
    world.start(task("a"), task("b", Ref("a")))
    message = world.effects.message("a")
    event = outcome_of(message, world.clock.now(), 1)
    # Delivered to another worker.
    world.effects.messages[message.send.task_id] = type(message)("run", message.send)
    written = world.store.give("run", lambda now, view: event, world.effects.settling(message))

    assert written.lost
    assert world.states() == {"a": "sent"}


def test_an_outcome_that_is_out_of_date_is_ignored_whoever_has_the_message(world: World):
    world.start(task("a"), task("b", Ref("a")))
    message = world.effects.message("a")
    world.succeed("a")
    event = outcome_of(message, world.clock.now(), 2)
    written = world.store.give("run", lambda now, view: event, world.effects.settling(message))

    assert not written.lost
    assert "another attempt" in written.decision.ignored
    assert world.store.result("run", Key("a")) is None


def test_an_effect_that_fails_undoes_everything(world: World):
    world.start(task("a"), task("b", Ref("a")))
    event = outcome_of(world.effects.message("a"), world.clock.now(), 1)

    class Failing(Recorder):
        def send(self, *given: Any) -> None:
            raise LookupError("no such queue")

    with pytest.raises(LookupError, match="no such queue"):
        world.store.give("run", lambda now, view: event, Failing())
    assert world.states() == {"a": "sent"}
    with pytest.raises(LookupError, match="no such queue"):
        world.store.create([NewRun(id="b", definition=Definition(name="w", steps=(task("s"),)))], Failing())
    assert [listed.id for listed in world.store.find(Query())] == ["run"]


def test_a_result_that_cannot_be_stored_is_an_error_and_changes_nothing(world: World):
    world.start(task("a"), task("b", Ref("a")))
    with pytest.raises(TypeError):
        world.succeed("a", object())
    assert world.states() == {"a": "sent"}


def test_what_the_state_of_the_run_does_not_allow(world: World):
    world.start(task("a"))
    with pytest.raises(InvalidTransitionError):
        world.give(RetryRequested(at=0, epoch=1))
    world.succeed("a")
    with pytest.raises(InvalidTransitionError):
        world.give(RetryRequested(at=0, epoch=1))


def test_a_step_that_sleeps_and_one_that_waits_in_vain(world: World):
    world.start(
        Step(name="nap", action=Sleep(seconds=10)),
        Step(name="word", action=Wait(signal="go", timeout=5, on_timeout=Otherwise.SKIP)),
    )
    assert world.store.next_due() == timedelta(seconds=5)
    world.after(5)
    assert world.states() == {"nap": "sleeping", "word": "skipped"}
    world.after(5)
    assert world.state() is RunState.SUCCEEDED


def test_what_is_due_at_once_is_said(world: World):
    [first] = world.start(Step(name="nap", action=Sleep(seconds=0))).due
    assert world.store.due(10) == [first]
    written = world.store.deliver(first, world.effects)
    assert written is not None
    assert written.decision.run.state is RunState.SUCCEEDED
    assert world.store.deliver(first, world.effects) is None


def test_timers_of_a_run_that_is_over_are_gone(world: World):
    world.start(
        task("a"), definition=Definition(name="w", steps=(task("a"), Step(name="s", action=Sleep(seconds=9))), timeout=60)
    )
    world.fail("a")
    assert world.state() is RunState.FAILED
    assert world.store.next_due() is None
    assert world.count("event") == 0


def test_a_run_has_its_time(world: World):
    world.start(definition=Definition(name="w", steps=(task("a"),), timeout=60))
    world.after(60)
    assert world.state() is RunState.FAILED
    assert world.store.get("run").record.reason == "deadline"


def test_a_signal_is_kept_until_somebody_waits_and_counts_once(world: World):
    world.start(task("a"), Step(name="w", action=Wait(signal="go"), after=("a",)))
    for _ in range(2):
        world.give(SignalReceived(at=world.clock.now(), id="1", name="go", payload={"x": 1}))
    world.give(SignalReceived(at=world.clock.now(), id="2", name="go", payload=None))
    [first, second] = world.store.signals("run")
    assert (first.id, first.payload, first.order, first.taken_by, second.order) == ("1", {"x": 1}, 1, None, 2)
    world.succeed("a")

    assert world.store.result("run", Key("w")) == {"x": 1}
    assert [signal.taken_by for signal in world.store.signals("run")] == ["w", None]
    world.start(task("s"), id="b")
    with pytest.raises(ValueError, match="signal id"):
        world.give(SignalReceived(at=0, id="x" * 300, name="go"), "b")


def test_messages_that_have_not_begun_are_taken_back_in_the_same_transaction(world: World):
    world.start(task("a"), task("b"), task("c"))
    world.effects.message("b").leased = True
    world.fail("a")

    assert world.states() == {"a": "failed", "b": "sent", "c": "cancelled"}
    assert not world.effects.message("b").stop
    world.succeed("b")
    assert world.state() is RunState.FAILED


def test_what_runs_is_told_to_stop_when_the_run_is_cancelled(world: World):
    world.start(task("a"), task("b"))
    world.effects.message("b").leased = True
    world.give(CancelRequested(at=world.clock.now(), reason="enough\0"))
    assert world.effects.message("b").stop
    assert world.store.get("run").record.reason == "enough"
    world.fail("b")
    assert world.state() is RunState.CANCELLED


def test_a_child_run_and_its_parent(world: World):
    world.start(expanding("grow"), task("next", Ref("grow")), labels={"team": "red"}, tenant="t", priority=3)
    message = world.effects.message("grow")
    event = outcome_of(message, world.clock.now())
    grown = type(event)(**{name: getattr(event, name) for name in ("at", "name", "epoch")}, expansion=child_of("grow"))
    for _ in range(2):
        world.give(grown)
    [child_id] = world.store.children("run")
    child = world.store.get(child_id)
    assert (child.labels, child.tenant, child.priority) == ({"team": "red"}, "t", 3)
    assert (child.record.parent, child.record.root_id) == (Parent("run", "grow"), "run")
    assert world.states() == {"grow": "expanded"}
    world.succeed("grow_one", 1)
    world.succeed("grow_two", 2)
    world.after(5)

    assert world.state(child_id) is RunState.SUCCEEDED
    assert world.store.result("run", Key("grow")) == 2
    assert world.effects.message("next").send.args == (2,)


def test_a_run_that_is_cancelled_cancels_its_children(world: World):
    world.start(expanding("grow"))
    event = outcome_of(world.effects.message("grow"), world.clock.now())
    grown = type(event)(**{name: getattr(event, name) for name in ("at", "name", "epoch")}, expansion=child_of("grow"))
    world.give(grown)
    [child_id] = world.store.children("run")
    written = world.give(CancelRequested(at=world.clock.now()))

    assert len(written.due) == 1
    assert world.state() is RunState.STOPPING
    world.deliver_all()
    assert (world.state(), world.state(child_id)) == (RunState.CANCELLED, RunState.CANCELLED)
    # Its retry goes on in the child.
    world.give(RetryRequested(at=world.clock.now(), epoch=1))
    world.deliver_all()
    assert (world.state(), world.state(child_id)) == (RunState.RUNNING, RunState.RUNNING)


def test_word_for_a_run_that_is_gone_is_forgotten(world: World):
    world.start(expanding("grow"))
    event = outcome_of(world.effects.message("grow"), world.clock.now())
    world.give(type(event)(at=0, name="grow", expansion=child_of("grow")))
    [child_id] = world.store.children("run")
    [posted] = world.give(CancelRequested(at=world.clock.now())).due
    world.database.run(lambda tx: tx.execute(world.tables.run.delete().where(world.tables.run.c.id == child_id)))

    assert world.store.due(10) == [posted]
    assert world.store.deliver(posted, world.effects) is None
    assert world.store.due(10) == []


def test_a_map_stores_its_items_in_chunks_and_begins_at_once(world: World):
    written = world.start(mapping("m", list(range(700)), max_parallel=10))
    assert len(world.effects.messages) == 10
    assert world.count("step") == 501
    assert written.due == ()
    for index in range(260):
        world.succeed("m", index * 2, index=index)
    assert len(world.store.due(10)) == 1
    world.deliver_all()
    assert world.count("step") == 701
    for index in range(260, 700):
        world.succeed("m", index * 2, index=index)
        world.deliver_all()

    assert world.state() is RunState.SUCCEEDED
    assert world.store.result("run", Key("m")) == [index * 2 for index in range(700)]
    assert world.store.result("run", Key("m", 7)) == 14
    # Chunks, and no items that went well.
    of_items = [(entry.index, entry.count) for _, entry in world.store.journal("run") if entry.index is not None]
    assert of_items == [(0, 500), (500, 200)]


def test_items_that_failed_are_told_in_the_journal(world: World):
    world.start(mapping("m", [1, 2, 3], on_error=OnItemError.FINISH))
    world.succeed("m", index=0)
    world.fail("m", index=1, error="Broken")
    world.succeed("m", index=2)

    assert world.state() is RunState.FAILED
    assert [(entry.index, entry.state, entry.error.type) for entry in world.store.errors("run") if entry.error] == [
        (1, "failed", "Broken"),
        (None, "failed", "ItemsFailed"),
    ]
    world.give(RetryRequested(at=world.clock.now(), epoch=1))
    world.succeed("m", "again", index=1)
    assert world.store.result("run", Key("m")) == [None, "again", None]


def test_many_items_are_taken_back_at_once(world: World):
    world.start(mapping("m", list(range(400))))
    world.effects.message("m", 5).leased = True
    world.fail("m", index=0)

    assert world.state() is RunState.RUNNING
    assert world.store.progress("run") == {"failed": 1, "sent": 1, "cancelled": 398}
    world.succeed("m", index=5)
    assert world.state() is RunState.FAILED


def test_a_rerun_with_a_shorter_list_shows_no_items_of_the_longer(world: World):
    world.start(task("a"), mapping("m", Ref("a")))
    world.succeed("a", [1, 2, 3])
    for index in range(3):
        world.succeed("m", index, index=index)
    world.give(RerunRequested(at=world.clock.now(), epoch=1, step="a"))
    world.succeed("a", [9])
    assert [item.index for item in world.store.items("run", "m")] == [0]
    assert world.store.progress("run") == {"succeeded": 1, "sent": 1}
    world.succeed("m", "new", index=0)
    assert world.store.result("run", Key("m")) == ["new"]
    assert world.state() is RunState.SUCCEEDED


def test_results_of_an_earlier_epoch_are_not_taken_for_those_of_this(world: World, tables: Tables):
    """Whichever process remembers them."""
    stores = [world.store, SQLRunStore(world.database, tables, JSONText())]
    world.start(task("a"), task("b", Ref("a")), task("c", Ref("a"), after=("b",)))
    for number, result in enumerate(("old", "new", "newer", "newest")):
        world.store = stores[number % 2]
        world.succeed("a", result)
        world.succeed("b")
        assert world.effects.message("c").send.args == (result,)
        world.succeed("c")
        world.store = stores[number // 2]
        epoch = world.store.get("run").record.epoch
        world.give(RerunRequested(at=world.clock.now(), epoch=epoch, scope="all"))


def test_a_result_that_is_none_is_one(world: World):
    world.start(task("a"), task("b", after=("a",)))
    assert world.store.results("run", ["a", "b", "$run"]) == {}
    world.succeed("a", None)
    assert world.store.results("run", ["a", "b", "$run"]) == {"a": None}
    world.succeed("b", None)
    assert world.store.results("run", ["a", "b", "$run"]) == {"a": None, "b": None, "$run": None}


# -- memos ------------------------------------------------------------------------------------


def test_a_memo_is_what_was_stored_first(world: World):
    world.start(task("a"))
    assert world.store.memo("run", Key("a"), "charge") == (False, None)
    assert world.store.keep_memo("run", Key("a"), "charge", None) is None
    assert world.store.keep_memo("run", Key("a"), "charge", 2) is None
    assert world.store.memo("run", Key("a"), "charge") == (True, None)
    assert world.store.keep_memo("run", Key("a", 0), "charge", {"x": [1]}) == {"x": [1]}
    with pytest.raises(ValueError, match="memo"):
        world.store.keep_memo("run", Key("a"), "m" * 256, 1)


def test_a_rerun_forgets_the_memos_of_its_steps_and_a_retry_does_not(world: World):
    world.start(task("a"), task("b", Ref("a")))
    for name in ("a", "b"):
        world.store.keep_memo("run", Key(name), "m", name)
    world.succeed("a")
    world.fail("b")
    world.give(RetryRequested(at=world.clock.now(), epoch=1))
    assert world.store.memo("run", Key("b"), "m") == (True, "b")
    world.succeed("b")
    world.give(RerunRequested(at=world.clock.now(), epoch=2, step="b"))
    assert world.store.memo("run", Key("a"), "m") == (True, "a")
    assert world.store.memo("run", Key("b"), "m") == (False, None)


# -- prune ------------------------------------------------------------------------------------


def test_runs_that_ended_long_ago_are_deleted_with_all_they_have(world: World):
    world.start(task("a"), id="old", labels={"k": "v"})
    world.store.keep_memo("old", Key("a"), "m", 1)
    world.give(SignalReceived(at=0, id="1", name="x"), "old")
    world.succeed("a", run_id="old")
    world.start(task("b"), id="open")
    world.clock.advance(timedelta(days=2))
    world.start(task("c"), id="new")
    world.succeed("c", run_id="new")

    assert world.store.prune(older_than=timedelta(days=1), limit=10) == 1
    assert world.store.prune(older_than=timedelta(days=1), limit=10) == 0
    assert [listed.id for listed in world.store.find(Query())] == ["new", "open"]
    assert [world.count(table) for table in ("definition", "step", "signal", "memo", "label")] == [2, 2, 0, 0, 0]
    assert world.store.journal("old") == []


def test_no_child_is_deleted_before_its_parent(world: World):
    world.start(expanding("grow"), task("last", after=("grow",)))
    world.give(type(outcome_of(world.effects.message("grow"), 0))(at=0, name="grow", expansion=child_of("grow")))
    [child_id] = world.store.children("run")
    world.succeed("grow_one")
    world.succeed("grow_two")
    world.after(5)
    assert world.state(child_id) is RunState.SUCCEEDED
    world.clock.advance(timedelta(days=2))
    assert world.store.prune(older_than=timedelta(days=1), limit=10) == 0
    world.succeed("last")
    world.clock.advance(timedelta(days=2))
    assert world.store.prune(older_than=timedelta(days=1), limit=1) == 1
    assert world.store.prune(older_than=timedelta(days=1), limit=10) == 1
    assert world.count("definition") == 0


def test_no_more_are_deleted_than_asked_for(world: World):
    definition = Definition(name="w", steps=(Step(name="g", action=Sleep(seconds=0)),))
    world.store.create([NewRun(id=str(number), definition=definition) for number in range(7)], world.effects)
    world.deliver_all()
    world.clock.advance(timedelta(days=2))
    assert [world.store.prune(older_than=timedelta(days=1), limit=3) for _ in range(4)] == [3, 3, 1, 0]


def test_a_run_that_waits_to_be_done_again_is_not_old(world: World):
    world.start(task("a"), concurrency_key="k")
    world.fail("a")
    world.start(task("a"), id="other", concurrency_key="k")
    world.give(RetryRequested(at=world.clock.now(), epoch=1))
    world.clock.advance(timedelta(days=2))
    assert world.state() is RunState.PENDING
    assert world.store.prune(older_than=timedelta(days=1), limit=3) == 0


def test_the_time_of_a_run_begins_with_its_start(world: World):
    later = Definition(name="w", steps=(task("a"),), timeout=60)
    world.start(definition=later, start_at=world.clock.now() + 3_600_000_000)
    world.after(3659)
    assert world.state() is RunState.RUNNING
    world.after(1)
    assert world.state() is RunState.FAILED
