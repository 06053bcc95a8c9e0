"""How much work a call makes: few statements, each of which finds its rows by an index however the table has grown."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.messages import Lease, NewMessage, Reason
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..databases import requires
from ..statements import Executed
from .sending import SECOND, after, claim, claim_one, message, send

Watch = Callable[[], AbstractContextManager[Executed]]


def plan(database: Database, statement: str, parameters: Any) -> list[str]:
    """How the database goes about it, a line a step."""
    explain = "EXPLAIN QUERY PLAN" if database.dialect.name == "sqlite" else "EXPLAIN"
    with database.engine.connect() as connection:
        if database.dialect.name == "postgresql" and isinstance(parameters, tuple):
            cursor = database.dialect.cursor(connection.connection.driver_connection)
            return [row[0].strip() for row in cursor.execute(f"{explain} {statement}", parameters)]
        rows = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()
    if database.dialect.name == "mysql":
        return [f"{row.type} {row.table}" for row in rows if row.select_type != "INSERT"]
    return [row[-1].strip() for row in rows]


def reads_all_messages(database: Database, steps: list[str]) -> bool:
    """Whether one of the steps goes through the table, or through all that its primary key lists."""
    name = database.tables.message.name
    return any(
        step.startswith((f"SCAN {name}", f"ALL {name}", f"index {name}"))
        or f"Seq Scan on {name}" in step
        or (f"using {name}_pkey" in step and not following.startswith("Index Cond"))
        for step, following in itertools.pairwise([*steps, ""])
    )


#: What is done all day long, by name.
CALLS: dict[str, Callable[[SQLMessageStore, int, Lease], object]] = {
    "publish": lambda store, lessee, lease: store.publish([message()]),
    "publish many": lambda store, lessee, lease: store.publish([message(), message(priority=3)]),
    "replace": lambda store, lessee, lease: store.publish([message()], replaces=lease),
    "claim": lambda store, lessee, lease: claim(store, lessee, "q", "another", limit=10),
    "ack": lambda store, lessee, lease: store.ack([lease, Lease(10**6, 1)]),
    "start": lambda store, lessee, lease: store.start([lease, Lease(10**6, 1)]),
    "release": lambda store, lessee, lease: store.release([lease]),
    "nack": lambda store, lessee, lease: store.nack(lease, max_reclaims=5),
    "bury": lambda store, lessee, lease: store.bury(lease, Reason.REJECTED),
    "release strays": lambda store, lessee, lease: store.release_strays(lessee, []),
    "promote": lambda store, lessee, lease: store.promote(limit=10),
    "next due": lambda store, lessee, lease: store.next_due(),
    "expire": lambda store, lessee, lease: store.expire(limit=10),
    "next expiry": lambda store, lessee, lease: store.next_expiry(),
    "reclaim": lambda store, lessee, lease: store.reclaim(max_reclaims=5, limit=10),
    "redrive": lambda store, lessee, lease: store.redrive([1, 2]),
    "reports": lambda store, lessee, lease: store.claim_reports(limit=10, lease_for=SECOND),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_reads_the_whole_table(
    store: SQLMessageStore, lessee: int, database: Database, executed: Watch, clock: FakeClock, call: str
):
    """Nor would it if it were planned, as here, while the table is almost empty."""
    send(store, "a", priority=7)
    send(store, "later", due_at=after(clock, -SECOND) + 2_000_000, expires_in=SECOND)
    lease = claim_one(store, lessee).lease
    clock.advance(40 * SECOND)
    if database.dialect.name == "postgresql":
        database.statement(lambda tx: tx.execute(text("ANALYZE")))
    elif database.dialect.name == "mysql":
        # It plans by figures that it gathers in its own time, and goes through all of a small table.
        send(store, *map(str, range(300)), queue="full")
        database.statement(lambda tx: tx.execute(text(f"ANALYZE TABLE {database.tables.message.name}")).all())
    with executed() as statements:
        CALLS[call](store, lessee, lease)

    plans = {
        statement: plan(database, statement, parameters) for statement, parameters in statements if explainable(statement)
    }
    assert plans
    assert {statement: steps for statement, steps in plans.items() if reads_all_messages(database, steps)} == {}


def explainable(statement: str) -> bool:
    return statement.lstrip().upper().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"))


@requires(Capability.LATERAL)
@pytest.mark.parametrize(
    ("call", "most"),
    [
        ("publish", 1),
        ("publish many", 2),
        ("claim", 1),
        ("ack", 1),
        ("start", 1),
        ("release", 2),
        ("next due", 1),
        ("promote", 1),
        ("next expiry", 1),
    ],
)
def test_a_call_is_few_round_trips(store: SQLMessageStore, lessee: int, executed: Watch, call: str, most: int):
    send(store, "a", "b", priority=3)
    lease = claim_one(store, lessee).lease
    with executed() as statements:
        CALLS[call](store, lessee, lease)

    assert len(statements) <= most


@requires(Capability.LATERAL)
def test_a_claim_writes_its_limit_into_the_text(store: SQLMessageStore, lessee: int, executed: Watch):
    """With a parameter there the planner reckons with a tenth of the table, and reads all of it."""
    with executed() as statements:
        claim(store, lessee, limit=17)

    assert "LIMIT 17" in statements[-1][0]


@requires(Capability.LATERAL)
def test_a_claim_does_not_wait_for_the_disk_but_a_publish_does(store: SQLMessageStore, lessee: int, executed: Watch):
    claim(store, lessee)
    with executed() as statements:
        send(store, "a")
    assert not any("set_config" in statement for statement, _ in statements)

    with executed() as statements:
        lease = claim_one(store, lessee).lease
        store.ack([lease])
    # A claim may first ask which transactions are open, which writes nothing.
    writing = [statement for statement, _ in statements if not statement.startswith("SELECT")]
    assert len(writing) == 2
    assert all("set_config" in statement for statement in writing)


@requires(Capability.LATERAL)
def test_the_disk_is_the_callers_affair_in_its_own_transaction(
    store: SQLMessageStore, lessee: int, database: Database, executed: Watch
):
    send(store, "a")
    with executed() as statements, database.engine.begin() as connection:
        within = store.within(connection)
        within.ack([claim_one(within, lessee).lease])

    assert not any("set_config" in statement for statement, _ in statements)


@requires(Capability.LATERAL)
@pytest.mark.parametrize("count", [1, 2])
def test_events_and_commands_need_not_wait_for_the_disk(
    store: SQLMessageStore, database: Database, executed: Watch, count: int
):
    """Only by themselves: what they are stored together with is as durable as ever."""
    transient = replace(message(), transient=True)

    def unhurried(*messages: NewMessage) -> bool:
        with executed() as statements:
            store.publish(messages)
        return any("set_config" in statement for statement, _ in statements)

    assert unhurried(*[transient] * count)
    assert not unhurried(message(), *[transient] * count)
    with database.transaction():
        assert not unhurried(*[transient] * count)


@requires(Capability.LATERAL)
def test_a_claim_that_does_not_wait_leaves_the_connection_as_it_was(store: SQLMessageStore, lessee: int, database: Database):
    claim(store, lessee)

    assert database.statement(lambda tx: tx.scalar(text("SHOW synchronous_commit"))) == "on"


def test_an_idle_claim_does_not_hold_up_writers(store: SQLMessageStore, lessee: int, database: Database):
    """Where there is one writer at a time, who finds nothing must not have been it."""
    with database.engine.begin():
        assert claim(store, lessee) == []
