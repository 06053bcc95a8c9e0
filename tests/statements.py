"""Which statements a database is asked to execute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct

__all__ = ["Executed", "watching"]

#: Statements with their parameters.
Executed = list[tuple[str, Any]]


@contextmanager
def watching(database: Database) -> Iterator[Executed]:
    """The statements that are executed in the block."""
    statements: Executed = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        statements.append((statement, parameters))

    def note_direct(self: Direct, tx: Connection, parameters: Mapping[str, Any]) -> Any:
        statements.append((self._text, self._all(parameters)))
        return execute(self, tx, parameters)

    execute = Direct._execute
    event.listen(database.engine, "before_cursor_execute", note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Direct, "_execute", note_direct)
        yield statements
    event.remove(database.engine, "before_cursor_execute", note)
