"""Workflow runs: what they are, where they are, what is on its way to them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, SmallInteger, String, column

from celery_workflow.sql.migrations.making import NAME, NUMBER, TEXT, create, index

revision = "0002"
down_revision = "0001"

STATE = String(16)
#: Rows that are changed often leave room for their next versions, so that indexes need not be written.
CHANGING = {"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.05"}


def upgrade() -> None:
    create_run()
    create_step()
    create_history()
    create_event()
    create_line()
    create_label()


def create_run() -> None:
    create(
        "definition",
        Column("digest", String(32), primary_key=True),
        Column("name", NAME, nullable=False),
        Column("version", Integer, nullable=False),
        Column("fingerprint", String(32), nullable=False),
        Column("body", TEXT, nullable=False),
    )
    create(
        "run",
        Column("number", NUMBER, primary_key=True, autoincrement=True),
        Column("id", NAME, nullable=False),
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
        Column("request", TEXT),
        Column("changed_at", BigInteger, nullable=False),
        Column("result", TEXT),
        sqlite_autoincrement=True,
        postgresql_with=CHANGING,
    )
    index("run", "id", "id", unique=True)
    index("run", "workflow", "workflow", "number")
    index("run", "state", "state", "number")
    index("run", "definition", "definition")
    finished, is_child = column("finished_at").is_not(None), column("parent_run").is_not(None)
    index("run", "finished", "finished_at", postgresql_where=finished, sqlite_where=finished)
    index("run", "parent", "parent_run", postgresql_where=is_child, sqlite_where=is_child)


def create_step() -> None:
    create(
        "step",
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
        Column("value", TEXT),
        Column("total", Integer),
        Column("inserted", Integer, nullable=False),
        Column("sent", Integer, nullable=False),
        Column("done", Integer, nullable=False),
        Column("failed_items", Integer, nullable=False),
        Column("next_item", Integer, nullable=False),
        Column("expanding", SmallInteger, nullable=False),
        Column("stopped", SmallInteger, nullable=False),
        Column("result", TEXT),
        postgresql_with=CHANGING,
    )


def create_history() -> None:
    create(
        "signal",
        Column("run", BigInteger, primary_key=True, autoincrement=False),
        Column("id", NAME, primary_key=True),
        Column("name", NAME, nullable=False),
        Column("payload", TEXT, nullable=False),
        Column("place", Integer, nullable=False),
        Column("received_at", BigInteger, nullable=False),
        Column("taken_by", NAME),
    )
    create(
        "memo",
        Column("run", BigInteger, primary_key=True, autoincrement=False),
        Column("step", NAME, primary_key=True),
        Column("idx", Integer, primary_key=True, autoincrement=False),
        Column("name", NAME, primary_key=True),
        Column("value", TEXT, nullable=False),
    )
    create(
        "journal",
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
    index("journal", "run", "run", "id")


def create_event() -> None:
    create(
        "event",
        Column("id", NUMBER, primary_key=True, autoincrement=True),
        Column("run", NAME, nullable=False),
        Column("due_at", BigInteger, nullable=False),
        Column("kind", STATE, nullable=False),
        Column("body", TEXT, nullable=False),
        sqlite_autoincrement=True,
    )
    index("event", "due", "due_at")
    index("event", "run", "run")


def create_line() -> None:
    create(
        "line",
        Column("concurrency_key", NAME, primary_key=True),
        Column("holder", BigInteger),
    )
    create(
        "waiter",
        Column("id", NUMBER, primary_key=True, autoincrement=True),
        Column("concurrency_key", NAME, nullable=False),
        Column("run", BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    index("waiter", "key", "concurrency_key", "id")
    index("waiter", "run", "run", unique=True)


def create_label() -> None:
    create(
        "label",
        Column("run", BigInteger, primary_key=True, autoincrement=False),
        Column("name", NAME, primary_key=True),
        Column("value", NAME, nullable=False),
    )
    index("label", "value", "name", "value", "run")
