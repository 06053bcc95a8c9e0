"""The tables and their indexes, nothing else. The migrations build the same ones.

A message is in exactly one state, told by its columns and stored nowhere twice:

    ready      `position` is set: its place in its queue and priority
    delayed    `due_at` is set: not before that instant
    leased     `lessee` is set: claimed; `begun_at` too once its task runs, `started_at` once it may not again

`owner` names what else the message is a part of, such as the run of a workflow.

Every time is microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Sequence, SmallInteger, String, Table, Text
from sqlalchemy.dialects import mysql

__all__ = ["Tables"]

NAME = String(255)
#: SQLite numbers rows by itself only in a column it calls INTEGER.
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


class Tables:
    """The tables of one prefix in one schema."""

    def __init__(self, prefix: str, schema: str | None) -> None:
        self.prefix = prefix
        self.metadata = metadata = MetaData(schema=schema)
        self.positions = Sequence(f"{prefix}position", metadata=metadata, data_type=BigInteger, cache=1)
        self.message = Table(
            f"{prefix}message",
            metadata,
            Column("id", NUMBER, primary_key=True, autoincrement=True),
            Column("queue", NAME, nullable=False),
            Column("priority", SmallInteger, nullable=False),
            Column("position", BigInteger),
            Column("due_at", BigInteger),
            Column("lessee", BigInteger),
            Column("begun_at", BigInteger),
            Column("started_at", BigInteger),
            Column("deliveries", Integer, nullable=False),
            Column("reclaims", Integer, nullable=False),
            Column("holders", TEXT),
            Column("published_at", BigInteger, nullable=False),
            Column("expires_at", BigInteger),
            Column("task_id", NAME),
            Column("task", NAME),
            Column("owner", NAME),
            Column("envelope", TEXT, nullable=False),
            Column("body", BYTES, nullable=False),
            sqlite_autoincrement=True,
            postgresql_with={"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.02"},
        )
        m = self.message.c
        _partial(f"{prefix}message_ready", m.queue, m.priority, m.position, where=m.position.is_not(None))
        _partial(f"{prefix}message_due", m.due_at, where=m.due_at.is_not(None))
        _partial(f"{prefix}message_lessee", m.lessee, where=m.lessee.is_not(None))
        _partial(f"{prefix}message_expires", m.expires_at, where=m.expires_at.is_not(None))
        _partial(f"{prefix}message_owner", m.owner, where=m.owner.is_not(None))

        self.dead = Table(
            f"{prefix}dead",
            metadata,
            Column("id", BigInteger, primary_key=True, autoincrement=False),
            Column("queue", NAME, nullable=False),
            Column("priority", SmallInteger, nullable=False),
            Column("deliveries", Integer, nullable=False),
            Column("reclaims", Integer, nullable=False),
            Column("holders", TEXT),
            Column("published_at", BigInteger, nullable=False),
            Column("died_at", BigInteger, nullable=False),
            Column("reason", String(32), nullable=False),
            Column("report_at", BigInteger),
            Column("task_id", NAME),
            Column("task", NAME),
            Column("owner", NAME),
            Column("envelope", TEXT, nullable=False),
            Column("body", BYTES, nullable=False),
        )
        _partial(f"{prefix}dead_report", self.dead.c.report_at, where=self.dead.c.report_at.is_not(None))
        Index(f"{prefix}dead_queue", self.dead.c.queue, self.dead.c.died_at)
        Index(f"{prefix}dead_task", self.dead.c.reason, self.dead.c.task)

        self.lessee = Table(
            f"{prefix}lessee",
            metadata,
            Column("id", NUMBER, primary_key=True, autoincrement=True),
            Column("name", NAME, nullable=False),
            Column("lease_for", BigInteger, nullable=False),
            Column("expires_at", BigInteger, nullable=False),
            Column("lost_at", BigInteger),
            sqlite_autoincrement=True,
        )
        #: Priorities other than 0 that a queue has seen. 0 needs no row.
        self.lane = Table(
            f"{prefix}lane",
            metadata,
            Column("queue", NAME, primary_key=True),
            Column("priority", SmallInteger, primary_key=True, autoincrement=False),
        )
        #: Who waits to be woken for a topic: publishers announce only to someone.
        self.waiter = Table(
            f"{prefix}waiter",
            metadata,
            Column("topic", NAME, primary_key=True),
            Column("waiter", NAME, primary_key=True),
            Column("expires_at", BigInteger, nullable=False),
        )
        #: The last position drawn, on databases without sequences.
        self.counter = Table(
            f"{prefix}counter",
            metadata,
            Column("name", NAME, primary_key=True),
            Column("value", BigInteger, nullable=False),
        )

        #: One row: the oldest schema whose clients still get on with these tables.
        self.release = Table(
            f"{prefix}release",
            metadata,
            Column("min_client", Integer, primary_key=True, autoincrement=False),
        )

        #: Task ids (`stamp` is empty) and stamps that may not run any more.
        self.revocation = Table(
            f"{prefix}revocation",
            metadata,
            Column("stamp", NAME, primary_key=True),
            Column("value", NAME, primary_key=True),
            Column("expires_at", BigInteger, nullable=False),
        )
        Index(f"{prefix}revocation_expires", self.revocation.c.expires_at)

        self.exchange = Table(
            f"{prefix}exchange",
            metadata,
            Column("name", NAME, primary_key=True),
            Column("kind", String(16), nullable=False),
            Column("durable", SmallInteger, nullable=False),
            Column("auto_delete", SmallInteger, nullable=False),
            Column("arguments", TEXT, nullable=False),
        )
        self.queue = Table(
            f"{prefix}queue",
            metadata,
            Column("name", NAME, primary_key=True),
            Column("durable", SmallInteger, nullable=False),
            Column("exclusive", SmallInteger, nullable=False),
            Column("auto_delete", SmallInteger, nullable=False),
            Column("arguments", TEXT, nullable=False),
            Column("expires_for", BigInteger),
            Column("message_ttl", BigInteger),
            Column("used_at", BigInteger, nullable=False),
        )
        self.binding = Table(
            f"{prefix}binding",
            metadata,
            # Three names make 3060 bytes in MySQL's eyes: just below its limit of 3072 for a key.
            Column("exchange", NAME, primary_key=True),
            Column("queue", NAME, primary_key=True),
            Column("routing_key", NAME, primary_key=True),
            Column("arguments", TEXT, nullable=False),
        )
        Index(f"{prefix}binding_queue", self.binding.c.queue)
        #: How many consumers of a queue a lessee has. They count while the lessee is not lost.
        self.consumer = Table(
            f"{prefix}consumer",
            metadata,
            Column("queue", NAME, primary_key=True),
            Column("lessee", BigInteger, primary_key=True, autoincrement=False),
            Column("consumers", Integer, nullable=False),
        )

        self.result = Table(
            f"{prefix}result",
            metadata,
            Column("task_id", NAME, primary_key=True),
            Column("state", String(50), nullable=False),
            Column("task", NAME),
            Column("message_id", BigInteger),
            Column("delivery", Integer),
            Column("updated_at", BigInteger, nullable=False),
            Column("expires_at", BigInteger),
            Column("meta", BYTES, nullable=False),
        )
        _partial(f"{prefix}result_expires", self.result.c.expires_at, where=self.result.c.expires_at.is_not(None))
        self.group_result = Table(
            f"{prefix}group_result",
            metadata,
            Column("group_id", NAME, primary_key=True),
            Column("expires_at", BigInteger),
            Column("meta", BYTES, nullable=False),
        )
        _partial(
            f"{prefix}group_result_expires",
            self.group_result.c.expires_at,
            where=self.group_result.c.expires_at.is_not(None),
        )
        self.chord = Table(
            f"{prefix}chord",
            metadata,
            Column("group_id", NAME, primary_key=True),
            Column("size", Integer),
            Column("extra", Integer, nullable=False),
            Column("returned", Integer, nullable=False),
            Column("finished_at", BigInteger),
            Column("expires_at", BigInteger),
            Column("header", BYTES),
        )
        _partial(f"{prefix}chord_expires", self.chord.c.expires_at, where=self.chord.c.expires_at.is_not(None))
        self.chord_part = Table(
            f"{prefix}chord_part",
            metadata,
            Column("group_id", String(191), primary_key=True),
            Column("part", String(191), primary_key=True),
            Column("place", Integer),
            Column("meta", BYTES, nullable=False),
        )


def _partial(name: str, *columns: Column, where) -> Index:  # type: ignore[type-arg,no-untyped-def]
    """An index of the rows that matter only, on databases that can."""
    return Index(name, *columns, postgresql_where=where, sqlite_where=where)
