"""The tables of workflow runs. What is JSON in them is as the app's serializer writes it.

Every time is microseconds since 1970-01-01 UTC. Flags are 0 or 1.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, SmallInteger, String, Table

from .column_types import NAME, NUMBER, STATE, TEXT

__all__ = ["NO_INDEX", "RunTables"]

#: The `idx` of a step's own row; an item of a map has its index there.
NO_INDEX = -1
#: Rows that are changed often leave room for their next versions, so that indexes need not be written.
CHANGING = {"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.05"}


class RunTables:
    """The tables of one prefix."""

    def __init__(self, prefix: str, metadata: MetaData) -> None:
        #: A workflow as it was started: one row for all runs of an equal definition.
        self.definition = Table(
            f"{prefix}definition",
            metadata,
            Column("digest", String(32), primary_key=True),
            Column("name", NAME, nullable=False),
            Column("version", Integer, nullable=False),
            Column("fingerprint", String(32), nullable=False),
            Column("body", TEXT, nullable=False),
        )
        self.run = _run(prefix, metadata)
        self.step = _step(prefix, metadata)
        self.signal = Table(
            f"{prefix}signal",
            metadata,
            Column("run", BigInteger, primary_key=True, autoincrement=False),
            Column("id", NAME, primary_key=True),
            Column("name", NAME, nullable=False),
            Column("payload", TEXT, nullable=False),
            Column("place", Integer, nullable=False),
            Column("received_at", BigInteger, nullable=False),
            Column("taken_by", NAME),
        )
        #: What happened. An entry with `items` stands for so many items from `idx` on.
        self.journal = Table(
            f"{prefix}journal",
            metadata,
            Column("id", NUMBER, primary_key=True, autoincrement=True),
            Column("run", BigInteger, nullable=False),
            Column("at", BigInteger, nullable=False),
            Column("state", STATE, nullable=False),
            Column("why", String(32), nullable=False),
            Column("epoch", Integer, nullable=False),
            Column("name", NAME),
            Column("idx", Integer, nullable=False),
            Column("attempt", Integer, nullable=False),
            Column("items", Integer, nullable=False),
            Column("error", TEXT),
            sqlite_autoincrement=True,
        )
        Index(f"{prefix}journal_run", self.journal.c.run, self.journal.c.id)
        #: What is on its way to a run: timers, delayed starts, turns in a line, words of other runs.
        self.event = Table(
            f"{prefix}event",
            metadata,
            Column("id", NUMBER, primary_key=True, autoincrement=True),
            Column("run", NAME, nullable=False),
            Column("due_at", BigInteger, nullable=False),
            Column("kind", STATE, nullable=False),
            Column("body", TEXT, nullable=False),
            sqlite_autoincrement=True,
        )
        Index(f"{prefix}event_due", self.event.c.due_at)
        Index(f"{prefix}event_run", self.event.c.run)
        self.memo = Table(
            f"{prefix}memo",
            metadata,
            Column("run", BigInteger, primary_key=True, autoincrement=False),
            Column("step", NAME, primary_key=True),
            Column("idx", Integer, primary_key=True, autoincrement=False),
            Column("name", NAME, primary_key=True),
            Column("value", TEXT, nullable=False),
        )
        #: A concurrency key that a run has, and the runs that wait for it, by id.
        self.line = Table(
            f"{prefix}line", metadata, Column("concurrency_key", NAME, primary_key=True), Column("holder", BigInteger)
        )
        self.waiter = Table(
            f"{prefix}waiter",
            metadata,
            Column("id", NUMBER, primary_key=True, autoincrement=True),
            Column("concurrency_key", NAME, nullable=False),
            Column("run", BigInteger, nullable=False),
            sqlite_autoincrement=True,
        )
        Index(f"{prefix}waiter_key", self.waiter.c.concurrency_key, self.waiter.c.id)
        Index(f"{prefix}waiter_run", self.waiter.c.run, unique=True)
        self.label = Table(
            f"{prefix}label",
            metadata,
            Column("run", BigInteger, primary_key=True, autoincrement=False),
            Column("name", NAME, primary_key=True),
            Column("value", NAME, nullable=False),
        )
        Index(f"{prefix}label_value", self.label.c.name, self.label.c.value, self.label.c.run)


def _run(prefix: str, metadata: MetaData) -> Table:
    run = Table(
        f"{prefix}run",
        metadata,
        Column("number", NUMBER, primary_key=True, autoincrement=True),
        Column("id", NAME, nullable=False),
        # What it is.
        Column("definition", String(32), nullable=False),
        Column("workflow", NAME, nullable=False),
        Column("version", Integer, nullable=False),
        Column("inputs", TEXT),
        Column("labels", TEXT),
        Column("tenant", NAME),
        Column("priority", Integer),
        Column("concurrency_key", NAME),
        Column("parent_run", NAME),
        Column("parent_step", NAME),
        Column("parent_idx", Integer),
        Column("root_id", NAME),
        Column("created_at", BigInteger, nullable=False),
        # Where it is.
        Column("state", STATE, nullable=False),
        Column("ending", STATE),
        Column("reason", TEXT),
        Column("error", TEXT),
        Column("failed_step", NAME),
        Column("epoch", Integer, nullable=False),
        Column("unfinished", Integer, nullable=False),
        Column("bad", Integer, nullable=False),
        Column("completions", Integer, nullable=False),
        Column("signals", Integer, nullable=False),
        Column("started_at", BigInteger),
        Column("finished_at", BigInteger),
        Column("deadline_at", BigInteger),
        # The retry or rerun that waits for its turn.
        Column("request", TEXT),
        Column("changed_at", BigInteger, nullable=False),
        Column("result", TEXT),
        sqlite_autoincrement=True,
        postgresql_with=CHANGING,
    )
    c = run.c
    Index(f"{prefix}run_id", c.id, unique=True)
    Index(f"{prefix}run_workflow", c.workflow, c.number)
    Index(f"{prefix}run_state", c.state, c.number)
    Index(f"{prefix}run_definition", c.definition)
    finished, is_child = c.finished_at.is_not(None), c.parent_run.is_not(None)
    Index(f"{prefix}run_finished", c.finished_at, postgresql_where=finished, sqlite_where=finished)
    Index(f"{prefix}run_parent", c.parent_run, postgresql_where=is_child, sqlite_where=is_child)
    return run


def _step(prefix: str, metadata: MetaData) -> Table:
    return Table(
        f"{prefix}step",
        metadata,
        Column("run", BigInteger, primary_key=True, autoincrement=False),
        Column("name", NAME, primary_key=True),
        Column("idx", Integer, primary_key=True, autoincrement=False),
        Column("state", STATE, nullable=False),
        Column("epoch", Integer, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("failures", Integer, nullable=False),
        Column("retries", Integer, nullable=False),
        Column("waits_for", Integer, nullable=False),
        Column("upstream_failed", SmallInteger, nullable=False),
        Column("cascades", SmallInteger, nullable=False),
        Column("first_due_at", BigInteger),
        Column("changed_at", BigInteger, nullable=False),
        Column("due_at", BigInteger),
        Column("error", TEXT),
        Column("place", Integer),
        Column("child_id", NAME),
        Column("child_epoch", Integer, nullable=False),
        # Of an item: what it is about. Of a map: how far it is.
        Column("value", TEXT),
        Column("total", Integer),
        Column("inserted", Integer, nullable=False),
        Column("sent", Integer, nullable=False),
        Column("done", Integer, nullable=False),
        Column("failed_items", Integer, nullable=False),
        Column("next_item", Integer, nullable=False),
        Column("expanding", SmallInteger, nullable=False),
        Column("stopped", SmallInteger, nullable=False),
        # Not read with the rest of a row: it may be large.
        Column("result", TEXT),
        postgresql_with=CHANGING,
    )
