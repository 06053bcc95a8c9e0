"""Runs that are created and changed in a transaction of somebody else's, on whatever connection he has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
from sqlalchemy import create_engine

from celery_workflow.engine.definition import Call, Definition, Map, Step
from celery_workflow.engine.events import CancelRequested
from celery_workflow.engine.records import Key
from celery_workflow.engine.states import RunState
from celery_workflow.engine.values import Ref
from celery_workflow.errors import RunNotFoundError
from celery_workflow.runs.store import NewRun
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.transactions import in_transaction

from ..celery.callers import KINDS, Caller, caller, orders
from .graphs import task
from .worlds import World

CHAIN = Definition(name="w", steps=(task("a"), task("b", Ref("a"))), result=Ref("b"))


@pytest.fixture
def callers(database_name: str, database_options: DatabaseOptions) -> Iterator[list[Callable[[], Iterator[Caller]]]]:
    """Callers with each kind of connection that waits for no event loop."""
    with orders(database_options) as table:
        lacking = {"async"} if find_spec("MySQLdb") else {"async", "mysqldb", "sqlalchemy_mysqldb"}
        kinds = [kind for kind in KINDS[database_name] if kind not in lacking]
        yield [lambda kind=kind: caller(kind, database_name, database_options, table) for kind in kinds]


def test_a_run_is_there_with_the_callers_rows_or_not_at_all(world: World, callers: list[Callable[[], Iterator[Caller]]]):
    for number, make in enumerate(callers):
        with make() as calls:
            for commits in (False, True):
                calls.order(number)
                with in_transaction(calls.connection):
                    for _ in range(2):
                        created = world.store.create(
                            [
                                NewRun(id=f"run {number}", definition=CHAIN, concurrency_key="k", labels={"x": "y"}),
                                NewRun(id=f"late {number}", definition=CHAIN, start_at=world.clock.now() + 1000),
                            ],
                            world.effects,
                        )
                    # The second time they are there, and the transaction is as good as before.
                    assert created == [None, None]
                calls.commit() if commits else calls.rollback()
                if not commits:
                    with pytest.raises(RunNotFoundError):
                        world.store.get(f"run {number}")
            world.give(CancelRequested(at=world.clock.now()), f"late {number}")
    assert world.state("run 0") is RunState.RUNNING
    assert all(world.state(f"run {number}") is RunState.PENDING for number in range(1, len(callers)))


def test_a_run_changes_with_the_callers_rows_or_not_at_all(world: World, callers: list[Callable[[], Iterator[Caller]]]):
    items = Map(call=Call(task="tasks.m"), items=Ref("a"), max_parallel=2)
    for number, make in enumerate(callers):
        run_id = f"run {number}"
        world.start(task("a"), Step(name="m", action=items), task("b", Ref("m")), id=run_id)
        message = world.effects.message("a", run_id=run_id)
        with make() as calls:
            for commits in (False, True):
                world.effects.messages[message.send.task_id] = message
                calls.order(number)
                with in_transaction(calls.connection):
                    world.end(message, [7, 8, 9])
                    for index in range(3):
                        world.succeed("m", index, index=index, run_id=run_id)
                    assert world.effects.message("b", run_id=run_id).send.args == ([0, 1, 2],)
                calls.commit() if commits else calls.rollback()
        world.succeed("b", "end", run_id=run_id)
        assert world.state(run_id) is RunState.SUCCEEDED


def test_a_transaction_that_began_before_sees_the_run_as_it_is(world: World, database_options: DatabaseOptions):
    """MySQL's transactions look at the database as it was when they began, unless they lock what they read."""
    if not world.database.has_writers:
        pytest.skip("nobody writes beside an open transaction")
    world.start(definition=CHAIN)
    engine = create_engine(database_options.url)
    with engine.connect() as connection, connection.begin():
        # PostgreSQL would refuse to lock what has changed since, and does not look back by itself.
        connection.exec_driver_sql(f"SELECT * FROM {world.tables.run.fullname}").all()
        world.succeed("a", 5)
        world.start(definition=CHAIN, id="new")
        with in_transaction(connection):
            assert world.store.create([NewRun(id="new", definition=CHAIN)], world.effects) == [None]
            assert world.succeed("b", 6, run_id="run").decision.ended
            world.succeed("a", 1, run_id="new")
    engine.dispose()
    assert world.state() is RunState.SUCCEEDED
    assert world.store.result("run", Key("$run")) == 6
    assert world.states("new") == {"a": "succeeded", "b": "sent"}


def test_a_memo_is_kept_whatever_becomes_of_the_transaction(world: World, database_options: DatabaseOptions):
    if not world.database.has_writers:
        pytest.skip("nobody writes beside an open transaction")
    world.start(definition=CHAIN)
    engine = create_engine(database_options.url)
    with engine.connect() as connection:
        transaction = connection.begin()
        with in_transaction(connection):
            world.store.keep_memo("run", Key("a"), "m", 1)
        transaction.rollback()
    engine.dispose()
    assert world.store.memo("run", Key("a"), "m") == (True, 1)
