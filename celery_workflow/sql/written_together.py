"""Statements that follow each other and of which nobody wants an answer: one round trip, where a database can do that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, literal, select

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.direct import Direct

__all__ = ["Part", "WrittenTogether"]

#: How many values a statement made of several has at most.
VALUES = 1_000


@dataclass(frozen=True, slots=True)
class Part:
    """A statement that writes a table, and its values. Statements of different tables share no name or parameter."""

    table: str
    name: str
    statement: Any
    alone: Direct
    values: Mapping[str, Any]


class WrittenTogether:
    """Executes statements. Those of different tables must not depend on each other: their order may become another."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._can = Capability.WRITES_TOGETHER in database.dialect.capabilities
        self._statements: dict[tuple[str, ...], Direct] = {}

    def __call__(self, tx: Connection, parts: Sequence[Part]) -> None:
        names = tuple(part.name for part in parts)
        values: dict[str, Any] = {}
        for part in parts:
            values |= part.values
        tables = {part.table for part in parts}
        if self._can and 1 < len(parts) == len(tables) and len(values) <= VALUES:
            self._statement(names, parts)(tx, values)
            return
        for part in parts:
            part.alone.count(tx, part.values)

    def _statement(self, names: tuple[str, ...], parts: Sequence[Part]) -> Direct:
        if names not in self._statements:
            written = [part.statement.cte(part.name) for part in parts]
            self._statements[names] = Direct(self._database, select(literal(1).label("done")).add_cte(*written))
        return self._statements[names]
