"""How migrations make tables and indexes, on each database, also after one that broke off."""

from __future__ import annotations

from typing import Any

from alembic import context, op
from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text, inspect
from sqlalchemy.dialects import mysql, sqlite

__all__ = ["NAME", "NUMBER", "TEXT", "create", "index", "named", "quoted", "resumes"]

NAME = String(255)
#: SQLite numbers rows by itself only in a column it calls INTEGER.
NUMBER = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


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


def index(table: str, name: str, *columns: str, **options: Any) -> None:
    full_name = named(f"{table}_{name}")
    there = inspect(op.get_bind()).get_indexes(named(table), schema=schema()) if resumes() else []
    if full_name not in {each["name"] for each in there}:
        op.create_index(full_name, named(table), list(columns), schema=schema(), **options)


def named(name: str) -> str:
    return f"{context.config.attributes['prefix']}{name}"


def quoted(name: str) -> str:
    """The name with its schema, as it is written in SQL."""
    preparer = op.get_context().dialect.identifier_preparer
    within = schema()
    return str(preparer.quote(name)) if within is None else f"{preparer.quote(within)}.{preparer.quote(name)}"


def schema() -> str | None:
    given: str | None = context.config.attributes["schema"]
    return given
