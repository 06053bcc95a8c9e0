"""Statements of the inner loop: built by SQLAlchemy once, then executed by the driver itself.

SQLAlchemy takes longer over a statement than driver and database together. Where a worker does the
same few things all day that is most of what it costs.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, CursorResult, Executable

if TYPE_CHECKING:
    from .database import Database

__all__ = ["Direct"]


class Direct:
    """A statement. Call it with a connection and its parameters for the rows that it returns."""

    def __init__(self, database: Database, statement: Executable) -> None:
        self._dialect = database.dialect
        self._statement = statement
        self._is_own = database.is_own
        self._errors = database.engine.dialect.loaded_dbapi.Error
        compiled: Any = statement.compile(dialect=database.compiling_dialect)  # type: ignore[attr-defined]
        self._text = str(compiled)
        self._order = compiled.positiontup
        self._writes = compiled.isinsert or compiled.isupdate or compiled.isdelete
        row: Any = namedtuple("Row", compiled.statement.exported_columns.keys(), rename=True)  # type: ignore[misc]
        self._row = row._make
        given = {name: bind for name, bind in compiled.binds.items() if not bind.required}
        self._constants = {name: bind.value for name, bind in given.items() if bind.callable is None}
        self._moving = {name: bind.callable for name, bind in given.items() if bind.callable is not None}

    def __call__(self, tx: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """The rows. Errors are SQLAlchemy's, as if it had executed the statement."""
        done = self._execute(tx, parameters)
        # Those of a result of SQLAlchemy have names already.
        return list(done.all() if isinstance(done, CursorResult) else map(self._row, done.fetchall()))

    def count(self, tx: Connection, parameters: Mapping[str, Any]) -> int:
        """How many rows it changed; for a statement that returns none."""
        return int(self._execute(tx, parameters).rowcount)

    def _execute(self, tx: Connection, parameters: Mapping[str, Any]) -> Any:
        if not self._is_own(tx):
            # The caller's own connection, perhaps of another driver.
            return tx.execute(self._statement, parameters)
        if not tx.in_transaction():
            # As SQLAlchemy would have done on its own, so that the caller's commit is one.
            tx.begin()
        if self._writes:
            self._dialect.before_write(tx)
        driver: Any = tx.connection.driver_connection
        try:
            cursor = self._dialect.cursor(driver)
            cursor.execute(self._text, self._all(parameters))
        except self._errors as error:
            # It tells whether the connection is lost, and with it the others of the pool, and does not return.
            tx._handle_dbapi_exception(error, self._text, None, None, None)
        return cursor

    def _all(self, parameters: Mapping[str, Any]) -> Any:
        moving = {name: value() for name, value in self._moving.items()}
        values = {**self._constants, **moving, **parameters}
        return values if self._order is None else tuple(values[name] for name in self._order)
