"""Deleting runs that ended long ago, with all they have."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import Column, Connection, Table, bindparam, delete, exists, select

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability

from ..engine.states import RunState
from .run_schema import RunTables

__all__ = ["RunRetention"]

MICROSECOND = timedelta(microseconds=1)
OVER = tuple(state.value for state in RunState if state.is_over)


class RunRetention:
    """What is deleted of one database."""

    def __init__(self, database: Database, tables: RunTables) -> None:
        self._database = database
        self._tables = tables
        run, parent = tables.run.c, tables.run.alias("parent")
        has_parent = exists().where(parent.c.id == run.parent_run)
        old = run.finished_at < database.now() - bindparam("older_than", type_=run.finished_at.type)
        self._old = (
            select(run.number, run.id)
            .where(old, run.state.in_(OVER), run.parent_run.is_(None) | ~has_parent)
            .order_by(run.finished_at)
            .with_for_update(of=tables.run, skip_locked=True)
        )

    def prune(self, older_than: timedelta, limit: int) -> int:
        def work(tx: Connection) -> int:
            done = 0
            # A child is seen to be old when its parent has gone.
            while done < limit and (gone := self._forget_some(tx, older_than // MICROSECOND, limit - done)):
                done += gone
            if done:
                self._forget_definitions(tx)
            return done

        return self._database.run(work)

    def _forget_some(self, tx: Connection, older_than: int, limit: int) -> int:
        rows = tx.execute(self._old.limit(limit), {"older_than": older_than}).all()
        if not rows:
            return 0
        numbers = [row.number for row in rows]
        t = self._tables
        for table in (t.step, t.signal, t.journal, t.memo, t.label):
            self._delete(tx, table, table.c.run, numbers)
        self._delete(tx, t.event, t.event.c.run, [row.id for row in rows])
        self._delete(tx, t.run, t.run.c.number, numbers)
        return len(numbers)

    def _delete(self, tx: Connection, table: Table, column: Column[object], values: Collection[object]) -> None:
        """At once, or one by one where a list could touch other rows."""
        dialect = self._database.dialect
        if Capability.GOES_BY_KEY in dialect.capabilities:
            tx.execute(
                delete(table).where(dialect.given(column, "old")), dialect.packed("old", 1, [(each,) for each in values])
            )
            return
        for value in values:
            tx.execute(delete(table).where(column == value))

    def _forget_definitions(self, tx: Connection) -> None:
        """Those without runs, unless somebody holds them to start one."""
        digest = self._tables.definition.c.digest
        unused = ~exists().where(self._tables.run.c.definition == digest)
        candidates = tx.scalars(select(digest).where(unused)).all()
        if candidates:
            held = select(digest).where(digest.in_(candidates)).with_for_update(skip_locked=True)
            free = tx.scalars(held).all()
            # Looked at again, now that nobody can begin to use them.
            for each in tx.scalars(select(digest).where(digest.in_(free), unused)).all():
                tx.execute(delete(self._tables.definition).where(digest == each))
