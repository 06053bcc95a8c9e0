"""The tables of release 0.1."""

from __future__ import annotations

from typing import Any

from alembic import context, op
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    SmallInteger,
    String,
    Table,
    Text,
    column,
    inspect,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.schema import CreateSequence

revision = "0001"
down_revision = None

NAME = String(255)
#: SQLite numbers rows by itself only in a column it calls INTEGER.
NUMBER = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    create_positions()
    create_message()
    create_dead()
    create_process_tables()
    create_routing_tables()
    create_result_tables()
    release = create("release", Column("min_client", Integer, primary_key=True, autoincrement=False))
    if not resumes() or op.get_bind().scalar(release.select()) is None:
        op.bulk_insert(release, [{"min_client": 1}])


def create_positions() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(CreateSequence(Sequence(named("position"), schema=schema(), data_type=BigInteger, cache=1)))


def create_message() -> None:
    create(
        "message",
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
    index_set("message", "ready", "queue", "priority", "position")
    index_set("message", "due", "due_at")
    index_set("message", "lessee", "lessee")
    index_set("message", "expires", "expires_at")
    index_set("message", "owner", "owner")


def create_dead() -> None:
    create(
        "dead",
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
    index_set("dead", "report", "report_at")
    index("dead", "queue", "queue", "died_at")
    index("dead", "task", "reason", "task")


def create_process_tables() -> None:
    create(
        "lessee",
        Column("id", NUMBER, primary_key=True, autoincrement=True),
        Column("name", NAME, nullable=False),
        Column("lease_for", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Column("lost_at", BigInteger),
        sqlite_autoincrement=True,
    )
    create(
        "lane",
        Column("queue", NAME, primary_key=True),
        Column("priority", SmallInteger, primary_key=True, autoincrement=False),
    )
    create(
        "waiter",
        Column("topic", NAME, primary_key=True),
        Column("waiter", NAME, primary_key=True),
        Column("expires_at", BigInteger, nullable=False),
    )
    create(
        "revocation",
        Column("stamp", NAME, primary_key=True),
        Column("value", NAME, primary_key=True),
        Column("expires_at", BigInteger, nullable=False),
    )
    index("revocation", "expires", "expires_at")
    create(
        "counter",
        Column("name", NAME, primary_key=True),
        Column("value", BigInteger, nullable=False),
    )


def create_routing_tables() -> None:
    create(
        "exchange",
        Column("name", NAME, primary_key=True),
        Column("kind", String(16), nullable=False),
        Column("durable", SmallInteger, nullable=False),
        Column("auto_delete", SmallInteger, nullable=False),
        Column("arguments", TEXT, nullable=False),
    )
    create(
        "queue",
        Column("name", NAME, primary_key=True),
        Column("durable", SmallInteger, nullable=False),
        Column("exclusive", SmallInteger, nullable=False),
        Column("auto_delete", SmallInteger, nullable=False),
        Column("arguments", TEXT, nullable=False),
        Column("expires_for", BigInteger),
        Column("message_ttl", BigInteger),
        Column("used_at", BigInteger, nullable=False),
    )
    create(
        "binding",
        Column("exchange", NAME, primary_key=True),
        Column("queue", NAME, primary_key=True),
        Column("routing_key", NAME, primary_key=True),
        Column("arguments", TEXT, nullable=False),
    )
    index("binding", "queue", "queue")
    create(
        "consumer",
        Column("queue", NAME, primary_key=True),
        Column("lessee", BigInteger, primary_key=True, autoincrement=False),
        Column("consumers", Integer, nullable=False),
    )


def create_result_tables() -> None:
    create(
        "result",
        Column("task_id", NAME, primary_key=True),
        Column("state", String(50), nullable=False),
        Column("task", NAME),
        Column("message_id", BigInteger),
        Column("delivery", Integer),
        Column("updated_at", BigInteger, nullable=False),
        Column("expires_at", BigInteger),
        Column("meta", BYTES, nullable=False),
    )
    index_set("result", "expires", "expires_at")
    create(
        "group_result",
        Column("group_id", NAME, primary_key=True),
        Column("expires_at", BigInteger),
        Column("meta", BYTES, nullable=False),
    )
    index_set("group_result", "expires", "expires_at")
    create(
        "chord",
        Column("group_id", NAME, primary_key=True),
        Column("size", Integer),
        Column("extra", Integer, nullable=False),
        Column("returned", Integer, nullable=False),
        Column("finished_at", BigInteger),
        Column("expires_at", BigInteger),
        Column("header", BYTES),
    )
    index_set("chord", "expires", "expires_at")
    create(
        "chord_part",
        Column("group_id", String(191), primary_key=True),
        Column("part", String(191), primary_key=True),
        Column("place", Integer),
        Column("meta", BYTES, nullable=False),
    )


def create(name: str, *columns: Column[Any], **options: Any) -> Table:
    if resumes() and columns_of(name) == {column.name for column in columns}:
        return Table(named(name), MetaData(), *columns, schema=schema())
    return op.create_table(named(name), *columns, schema=schema(), **options, **storage())


def resumes() -> bool:
    """Whether an earlier migration that broke off may have left something behind: MySQL does not undo it."""
    return op.get_context().dialect.name == "mysql" and not context.is_offline_mode()


def columns_of(table: str) -> set[str]:
    inspector = inspect(op.get_bind())
    if not inspector.has_table(named(table), schema=schema()):
        return set()
    return {column["name"] for column in inspector.get_columns(named(table), schema=schema())}


def storage() -> dict[str, Any]:
    """Names differ by each letter and by blanks at their end, too."""
    dialect: Any = op.get_context().dialect
    if dialect.name != "mysql":
        return {}
    collation = "utf8mb4_nopad_bin" if dialect.is_mariadb else "utf8mb4_0900_bin"
    return {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": collation}


def index_set(table: str, name: str, *columns: str) -> None:
    """An index of the rows in which the last of `columns` is set, on databases that can."""
    is_set = column(columns[-1]).is_not(None)
    index(table, name, *columns, postgresql_where=is_set, sqlite_where=is_set)


def index(table: str, name: str, *columns: str, **options: Any) -> None:
    full_name = named(f"{table}_{name}")
    there = inspect(op.get_bind()).get_indexes(named(table), schema=schema()) if resumes() else []
    if full_name not in {each["name"] for each in there}:
        op.create_index(full_name, named(table), list(columns), schema=schema(), **options)


def named(name: str) -> str:
    return f"{context.config.attributes['prefix']}{name}"


def schema() -> str | None:
    given: str | None = context.config.attributes["schema"]
    return given
