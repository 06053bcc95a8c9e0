"""Messages that are a part of something else, such as the run of a workflow."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, or_, select, union_all

from ..messages import Lease, Reason
from .by_key import DeletesByKey, locks_by_key
from .database import Database
from .dialect import Capability

__all__ = ["Owned"]


class Owned:
    """Finds and withdraws messages by who owns them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._message = database.tables.message
        self._dead = database.tables.dead
        self._forget = DeletesByKey(database, self._message)
        self._skip_locked = Capability.SKIP_LOCKED in database.dialect.capabilities

    def is_alive(self, tx: Connection, lease: Lease) -> bool:
        m = self._message.c
        return tx.scalar(select(m.id).where(m.id == lease.message_id)) is not None

    def withdraw(self, tx: Connection, owner: str, tasks: Collection[str]) -> set[str]:
        m = self._message.c
        mine = (m.owner == owner, m.lessee.is_(None), self._database.dialect.given(m.task_id, "tasks"))
        # Found without a lock and then locked by their keys: on MySQL a search locks what it passes.
        found = tx.scalars(select(m.id).where(*mine), self._packed("tasks", tasks)).all()
        parked = self._withdraw_parked(tx, owner, tasks)
        if not found:
            return parked
        free = select(m.id, m.task_id).where(self._database.dialect.given(m.id, "found"), m.lessee.is_(None))
        locked = locks_by_key(free.with_for_update(skip_locked=self._skip_locked), self._message)
        rows = tx.execute(locked, self._packed("found", found)).all()
        if rows:
            self._forget(tx, [row.id for row in rows])
        return parked | {row.task_id for row in rows}

    def _withdraw_parked(self, tx: Connection, owner: str, tasks: Collection[str]) -> set[str]:
        d, given = self._dead.c, self._database.dialect.given
        mine = select(d.id, d.task_id).where(
            d.reason == Reason.UNKNOWN_TASK.value, d.owner == owner, given(d.task_id, "tasks")
        )
        rows = tx.execute(mine.with_for_update(skip_locked=self._skip_locked), self._packed("tasks", tasks)).all()
        if rows:
            tx.execute(delete(self._dead).where(given(d.id, "parked")), self._packed("parked", [row.id for row in rows]))
        return {row.task_id for row in rows}

    def tasks(self, tx: Connection, owners: Collection[str]) -> set[tuple[str, str]]:
        m, d, given = self._message.c, self._dead.c, self._database.dialect.given
        alive = select(m.owner, m.task_id).where(given(m.owner, "owners"))
        waits = or_(d.report_at.is_not(None), d.reason == Reason.UNKNOWN_TASK.value)
        told = select(d.owner, d.task_id).where(waits, given(d.owner, "owners"))
        rows = tx.execute(union_all(alive, told), self._packed("owners", owners))
        return {(row.owner, row.task_id) for row in rows}

    def _packed(self, name: str, values: Collection[object]) -> dict[str, object]:
        return self._database.dialect.packed(name, 1, [(value,) for value in values])
