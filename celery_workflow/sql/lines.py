"""Concurrency keys: one run at a time has one, the others wait in the order in which they came.

Who has the lock of a run may lock the line of its key, and one line only: nobody who has it waits for anything else.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from kombu_sqlqueue.sql.database import Database

from .run_schema import RunTables

__all__ = ["Lines"]


class Lines:
    """The lines of one database. A line without a holder has no row."""

    def __init__(self, database: Database, tables: RunTables) -> None:
        self._line = line = tables.line
        self._waiter = waiter = tables.waiter
        self._run = tables.run
        values = {"concurrency_key": bindparam("of_key", type_=line.c.concurrency_key.type)}
        # Writes nothing new, but locks the row, which there is then for certain.
        self._locked = database.dialect.upsert(line, values, update={"holder": line.c.holder})
        mine = line.c.concurrency_key == bindparam("of_key")
        # Locked, so that a caller's transaction sees it as it is and not as it was when that began.
        self._look = select(line.c.holder).where(mine).with_for_update()
        first = select(waiter.c.id, waiter.c.run).where(waiter.c.concurrency_key == bindparam("of_key"))
        self._first = first.order_by(waiter.c.id).limit(1)

    def join(self, tx: Connection, key: str, number: int) -> bool:
        """Take the key, or a place at the end of its line; whether the run has it."""
        if self._holder(tx, key) is not None:
            tx.execute(insert(self._waiter).values(concurrency_key=key, run=number))
            return False
        self._hand(tx, key, number)
        return True

    def has(self, tx: Connection, key: str, number: int) -> bool:
        """Whether the run has the key."""
        return tx.scalar(self._look, {"of_key": key}) == number

    def leave(self, tx: Connection, key: str, number: int) -> str | None:
        """Give the key up, or the place in the line; the answer is the id of the run that has the key now instead."""
        if self._holder(tx, key) != number:
            waiting = select(self._waiter.c.id).where(self._waiter.c.run == number)
            self._forget(tx, tx.scalar(waiting))
            return None
        first = tx.execute(self._first, {"of_key": key}).first()
        if first is None:
            tx.execute(delete(self._line).where(self._line.c.concurrency_key == key))
            return None
        self._forget(tx, first.id)
        self._hand(tx, key, first.run)
        following: str = tx.execute(select(self._run.c.id).where(self._run.c.number == first.run)).scalar_one()
        return following

    def _holder(self, tx: Connection, key: str) -> int | None:
        tx.execute(self._locked, {"of_key": key})
        holder: int | None = tx.scalar(self._look, {"of_key": key})
        return holder

    def _hand(self, tx: Connection, key: str, number: int) -> None:
        tx.execute(update(self._line).where(self._line.c.concurrency_key == key).values(holder=number))

    def _forget(self, tx: Connection, waiter: int | None) -> None:
        if waiter is not None:
            tx.execute(delete(self._waiter).where(self._waiter.c.id == waiter))
