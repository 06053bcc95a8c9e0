"""The tables of this package. Those of schedules are for operators to read and, with care, to write.

Every time is microseconds since 1970-01-01 UTC; a column `*_for` is a duration in microseconds.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, SmallInteger, String, Table

from .column_types import NAME, NUMBER, TEXT
from .run_schema import RunTables

__all__ = ["RECKON", "TIMING", "Tables"]

#: The `due_at` of a row whose next tick is not known: the next beat that looks reckons it.
RECKON = 0
#: What a change of makes the next tick another one. Triggers watch these columns.
TIMING = (
    "kind",
    "spec",
    "timezone",
    "enabled",
    "paused_at",
    "windows",
    "jitter_for",
    "anchor_at",
    "start_at",
    "end_at",
    "max_runs",
    "dst_repeated",
    "dst_missing",
)


class Tables:
    """The tables of one prefix in one schema."""

    def __init__(self, prefix: str, schema: str | None) -> None:
        self.prefix = prefix
        self.metadata = metadata = MetaData(schema=schema)
        self.schedule = Table(
            f"{prefix}schedule",
            metadata,
            Column("id", NUMBER, primary_key=True, autoincrement=True),
            Column("name", NAME, nullable=False),
            # What it does.
            Column("task", NAME, nullable=False),
            Column("args", TEXT),
            Column("kwargs", TEXT),
            Column("options", TEXT),
            # When.
            Column("kind", String(16), nullable=False),
            Column("spec", NAME, nullable=False),
            Column("timezone", String(64), nullable=False, server_default="UTC"),
            Column("enabled", SmallInteger, nullable=False, server_default="1"),
            Column("paused_at", BigInteger),
            Column("note", NAME),
            Column("windows", TEXT),
            Column("jitter_for", BigInteger, nullable=False, server_default="0"),
            Column("anchor_at", BigInteger),
            Column("start_at", BigInteger),
            Column("end_at", BigInteger),
            Column("max_runs", Integer),
            Column("dst_repeated", String(8), nullable=False, server_default="first"),
            Column("dst_missing", String(8), nullable=False, server_default="shift"),
            # How.
            Column("misfire", String(16), nullable=False, server_default="fire_once"),
            Column("misfire_grace_for", BigInteger),
            Column("misfire_limit", Integer, nullable=False, server_default="1000"),
            Column("overlap", String(16), nullable=False, server_default="allow"),
            Column("fires_when", NAME),
            # Where it comes from; `synced` is what the configuration said of it last.
            Column("origin", NAME, nullable=False, server_default="api"),
            Column("synced", TEXT),
            Column("removed_at", BigInteger),
            # What became of it so far.
            Column("created_at", BigInteger),
            Column("next_at", BigInteger),
            Column("due_at", BigInteger, server_default=str(RECKON)),
            Column("last_at", BigInteger),
            Column("last_fired_at", BigInteger),
            Column("late_for", BigInteger),
            Column("last_task_id", NAME),
            Column("last_message", BigInteger),
            Column("queued_at", BigInteger),
            Column("runs", Integer, nullable=False, server_default="0"),
            Column("finished_at", BigInteger),
            Column("error", TEXT),
            sqlite_autoincrement=True,
            postgresql_with={"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.02"},
        )
        s = self.schedule.c
        Index(f"{prefix}schedule_name", s.name, unique=True)
        due = s.due_at.is_not(None)
        Index(f"{prefix}schedule_due", s.due_at, postgresql_where=due, sqlite_where=due)

        #: What became of each tick. Whoever inserts the row of a tick has fired it.
        self.tick = Table(
            f"{prefix}tick",
            metadata,
            Column("schedule", BigInteger, primary_key=True, autoincrement=False),
            Column("tick_at", BigInteger, primary_key=True, autoincrement=False),
            Column("cause", String(16), primary_key=True),
            Column("outcome", String(16), nullable=False),
            Column("reason", NAME),
            Column("handled_at", BigInteger, nullable=False),
            Column("late_for", BigInteger),
            Column("task_id", NAME),
            Column("node", NAME),
        )
        Index(f"{prefix}tick_handled", self.tick.c.handled_at)

        #: One row: the oldest schema whose clients still get on with these tables.
        self.release = Table(
            f"{prefix}release", metadata, Column("min_client", Integer, primary_key=True, autoincrement=False)
        )

        #: Of workflow runs.
        self.runs = RunTables(prefix, metadata)

    @property
    def waiter(self) -> Table:
        """What the channel is named after on which beats are woken."""
        return self.schedule
