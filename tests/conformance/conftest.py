"""What tests of the message store begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct
from kombu_sqlqueue.sql.messages import SQLMessageStore

LEASE = timedelta(seconds=30)


@pytest.fixture
def lessee(store: SQLMessageStore) -> int:
    """A worker with a lease of 30 seconds."""
    return store.enrol("worker", lease_for=LEASE)


@pytest.fixture
def other(store: SQLMessageStore) -> int:
    """Another one, with a lease of an hour."""
    return store.enrol("other", lease_for=timedelta(hours=1))


#: Statements with their parameters.
Executed = list[tuple[str, Any]]


@pytest.fixture
def executed(database: Database) -> Callable[[], AbstractContextManager[Executed]]:
    """Notes the statements that are executed in a ``with`` block."""

    @contextmanager
    def watching() -> Iterator[Executed]:
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

    return watching
