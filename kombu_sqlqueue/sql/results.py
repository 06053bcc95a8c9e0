"""Results of tasks and groups as rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    literal,
    or_,
    select,
    update,
)

from ..clock import microseconds
from ..results import FINAL, SUCCESS, NewResult, Result
from ..topics import RESULTS, result_topic
from .database import Database
from .dialect import Capability
from .direct import Direct

__all__ = ["SQLResultStore"]

T = TypeVar("T")


class SQLResultStore:
    """The `ResultStore` of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._result = database.tables.result
        self._group = database.tables.group_result
        self._chord = database.tables.chord
        self._chord_part = database.tables.chord_part

    # -- tasks ----------------------------------------------------------------------------

    def store(self, result: NewResult) -> bool:
        by = result.written_by
        values = {
            "new_task_id": result.task_id,
            "new_state": result.state,
            "new_task": result.task,
            "new_message_id": by.message_id if by else None,
            "new_delivery": by.delivery if by else None,
            "new_meta": result.meta,
            "kept_for": None if result.expires_in is None else microseconds(result.expires_in),
            "topic": result_topic(result.task_id),
        }
        return self._one(lambda tx: self._write(tx, values, by is not None, result.is_final))

    def _write(self, tx: Connection, values: dict[str, Any], by_delivery: bool, is_final: bool) -> bool:
        if Capability.UPDATE_RETURNING in self._database.dialect.capabilities:
            return bool(self._store[by_delivery, is_final](tx, values))
        # Two statements, of which each decides by itself.
        row = {name: value for name, value in values.items() if name != "topic"}
        return self._insert(tx, row) or tx.execute(self._overwrite[by_delivery], row).rowcount > 0

    # Built once: to build such a statement takes longer than to execute it.

    @cached_property
    def _store(self) -> dict[tuple[bool, bool], Direct]:
        """The statement for writes by a delivery or by others, of a final state or another. It returns a row if it wins."""
        upserts = {by: self._upsert(where) for by, where in self._wheres.items()}
        topic = bindparam("topic", type_=Text)
        announced = {by: self._database.announcing(upsert, topic, RESULTS) for by, upsert in upserts.items()}
        statements = {
            **{(by, False): upsert.returning(literal(1).label("won")) for by, upsert in upserts.items()},
            **{(by, True): statement for by, statement in announced.items()},
        }
        return {which: Direct(self._database, statement) for which, statement in statements.items()}

    @cached_property
    def _insert(self) -> Callable[[Connection, Mapping[str, Any]], bool]:
        return self._database.dialect.inserting(self._result, self._values())

    @cached_property
    def _overwrite(self) -> dict[bool, Update]:
        r, values = self._result, self._values()
        this = r.c.task_id == values.pop("task_id")
        return {by: update(r).where(this, where).values(values) for by, where in self._wheres.items()}

    @cached_property
    def _wheres(self) -> dict[bool, ColumnElement[bool]]:
        """What a write wins over, if it is not or is by a delivery."""
        return {False: self._result.c.state != SUCCESS, True: self._loses_to_delivery()}

    def _loses_to_delivery(self) -> ColumnElement[bool]:
        """What a write by a delivery wins over: `results.wins`, said in SQL."""
        r = self._result.c
        new_message, new_delivery = bindparam("new_message_id", type_=BigInteger), bindparam("new_delivery", type_=Integer)
        same_message = r.message_id == new_message
        earlier = or_(r.message_id < new_message, and_(same_message, r.delivery < new_delivery))
        unfinished = and_(same_message, r.delivery == new_delivery, *(r.state != final for final in sorted(FINAL)))
        return and_(r.state != SUCCESS, or_(r.message_id.is_(None), earlier, unfinished))

    def _upsert(self, where: ColumnElement[bool]) -> Any:
        values = self._values()
        update = [name for name in values if name != "task_id"]
        return self._database.dialect.upsert(self._result, values, update=update, where=where)

    def _values(self) -> dict[str, ColumnElement[Any]]:
        given = ("task_id", "state", "task", "message_id", "delivery", "meta")
        now = self._database.now()
        values: dict[str, ColumnElement[Any]] = {
            name: bindparam(f"new_{name}", type_=self._result.c[name].type) for name in given
        }
        return values | {"updated_at": now, "expires_at": now + bindparam("kept_for", type_=BigInteger)}

    def fetch(self, task_ids: Collection[str], *, final: bool = False) -> list[Result]:
        if not task_ids:
            return []
        ids = self._database.dialect.packed("ids", 1, [(task_id,) for task_id in task_ids])
        return [Result(*row) for row in self._one(lambda tx: self._fetch[final](tx, ids))]

    @cached_property
    def _fetch(self) -> dict[bool, Direct]:
        r = self._result.c
        known = select(r.task_id, r.state, r.meta, r.updated_at).where(self._database.dialect.given(r.task_id, "ids"))
        ended = known.where(or_(*(r.state == final for final in sorted(FINAL))))
        return {False: Direct(self._database, known), True: Direct(self._database, ended)}

    def forget(self, task_id: str) -> None:
        self._one(lambda tx: tx.execute(delete(self._result).where(self._result.c.task_id == task_id)))

    # -- groups ---------------------------------------------------------------------------

    def save_group(self, group_id: str, meta: bytes, *, expires_in: timedelta | None) -> None:
        values = {"group_id": group_id, "meta": meta, "expires_at": self._expiry(expires_in)}
        saved = self._database.dialect.upsert(self._group, values, update=["meta", "expires_at"])
        self._one(lambda tx: tx.execute(saved))

    def group(self, group_id: str) -> bytes | None:
        query = select(self._group.c.meta).where(self._group.c.group_id == group_id)
        return self._one(lambda tx: tx.scalar(query))

    def forget_group(self, group_id: str) -> None:
        self._one(lambda tx: tx.execute(delete(self._group).where(self._group.c.group_id == group_id)))

    # -- retention ------------------------------------------------------------------------

    def prune(self, limit: int) -> int:
        return sum(self._prune(table, limit) for table in self._expiring)

    @property
    def _expiring(self) -> tuple[Table, ...]:
        return self._result, self._group, self._chord

    @property
    def has_expired(self) -> ColumnElement[bool]:
        """Whether `prune` would find any."""
        return or_(*(exists().where(self._expired(table)) for table in self._expiring))

    def _prune(self, table: Table, limit: int) -> int:
        """Delete up to `limit` expired rows; those that someone else is writing just now are left for later."""
        [key] = table.primary_key
        expired = self._expired(table)

        def work(tx: Connection) -> int:
            ids = tx.scalars(select(key).where(expired).limit(limit).with_for_update(skip_locked=True)).all()
            if ids and table is self._chord:
                tx.execute(delete(self._chord_part).where(self._chord_part.c.group_id.in_(ids)))
            return tx.execute(delete(table).where(key.in_(ids))).rowcount if ids else 0

        # Seldom is anything expired: looking needs no lock, and on SQLite no other writer waits for it.
        if self._one(lambda tx: tx.scalar(select(key).where(expired).limit(1))) is None:
            return 0
        return self._database.run(work)

    def _expired(self, table: Table) -> ColumnElement[bool]:
        return table.c.expires_at <= self._database.now()

    # -- small things ---------------------------------------------------------------------

    def _one(self, work: Callable[[Connection], T]) -> T:
        """Do `work`, which is one statement, by itself or in the transaction that is open."""
        if self._database.in_transaction:
            return self._database.run(work, joins=True)
        return self._database.statement(work)

    def _expiry(self, expires_in: timedelta | None) -> ColumnElement[int] | None:
        return None if expires_in is None else self._database.now() + microseconds(expires_in)
