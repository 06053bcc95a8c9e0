"""Exchanges, queues and bindings as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, delete, null, or_, select, union_all, update

from ..clock import microseconds
from ..errors import NotFoundError
from ..routing import (
    Binding,
    Exchange,
    Kind,
    Queue,
    QueueArguments,
    RoutingTable,
    check_name,
    pack_arguments,
    unpack_arguments,
)
from ..topics import ROUTES
from .consumers import Consumers
from .database import Database
from .direct import Direct

__all__ = ["SQLRoutingStore"]

T = TypeVar("T")


class SQLRoutingStore:
    """The `RoutingStore` of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._exchange = database.tables.exchange
        self._queue = database.tables.queue
        self._binding = database.tables.binding
        self._consumers = Consumers(database)
        announcement = database.announcement(always=True)
        self._announce = None if announcement is None else Direct(database, announcement)
        # A declaration commits at once, also inside the caller's transaction, because kombu remembers
        # it even if that is rolled back. With a single writer the caller would wait for itself.
        self._joins = not database.has_writers

    # -- exchanges ------------------------------------------------------------------------

    def declare_exchange(self, exchange: Exchange) -> Exchange:
        standing = self.exchange(exchange.name)
        if standing is None:
            insert = self._database.dialect.insert_missing(self._exchange, [_exchange_values(exchange)])
            self._write(lambda tx: tx.execute(insert))
            standing = self.exchange(exchange.name)
        # It may have been deleted again by now: then this is what was declared.
        return standing or exchange

    def exchange(self, name: str) -> Exchange | None:
        e = self._exchange
        row = self._read(lambda tx: tx.execute(select(e).where(e.c.name == name)).one_or_none())
        return None if row is None else _as_exchange(row)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> bool:
        return self._write(lambda tx: self._delete_exchange(tx, name, if_unused))

    def _delete_exchange(self, tx: Connection, name: str, if_unused: bool) -> bool:
        b = self._binding
        if if_unused and tx.execute(select(b.c.queue).where(b.c.exchange == name).limit(1)).first():
            return False
        tx.execute(delete(b).where(b.c.exchange == name))
        tx.execute(delete(self._exchange).where(self._exchange.c.name == name))
        return True

    # -- queues ---------------------------------------------------------------------------

    def declare_queue(self, queue: Queue) -> bool:
        q = self._queue
        recently = q.c.used_at > self._database.now() - self._consumers.reuse_after
        row = self._read(
            lambda tx: tx.execute(select(q, recently.label("recently")).where(q.c.name == queue.name)).one_or_none()
        )
        same = row is not None and _as_queue(row) == queue
        if not same or (queue.is_temporary and row is not None and not row.recently):
            self._write(lambda tx: self._put_queue(tx, queue))
        return not same

    def _put_queue(self, tx: Connection, queue: Queue) -> None:
        values = {**_queue_values(queue), "used_at": self._database.now()}
        if not tx.execute(update(self._queue).where(self._queue.c.name == queue.name).values(values)).rowcount:
            tx.execute(self._database.dialect.insert_missing(self._queue, [values]))

    def queue(self, name: str) -> Queue | None:
        q = self._queue
        row = self._read(lambda tx: tx.execute(select(q).where(q.c.name == name)).one_or_none())
        return None if row is None else _as_queue(row)

    def queues(self) -> list[Queue]:
        rows = self._read(lambda tx: tx.execute(select(self._queue)).all())
        return sorted(map(_as_queue, rows), key=lambda queue: queue.name)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int | None:
        return self._write(lambda tx: self._consumers.delete_queue(tx, name, if_unused=if_unused, if_empty=if_empty))

    # -- bindings and routes --------------------------------------------------------------

    def bind(self, binding: Binding) -> bool:
        b = self._binding
        if self._read(lambda tx: tx.execute(select(b.c.queue).where(*self._is(binding))).first()):
            return False
        return self._write(lambda tx: self._bind(tx, binding))

    def _bind(self, tx: Connection, binding: Binding) -> bool:
        # Under the lock nobody deletes the queue, so that no binding outlives its queue.
        if not self._consumers.lock(tx, binding.queue):
            raise NotFoundError(f"there is no queue {binding.queue!r} to bind to {binding.exchange!r}: declare it first")
        values = {
            "exchange": binding.exchange,
            "queue": binding.queue,
            "routing_key": binding.routing_key,
            "arguments": _dump(unpack_arguments(binding.arguments)),
        }
        tx.execute(self._database.dialect.insert_missing(self._binding, [values]))
        kind = tx.scalar(select(self._exchange.c.kind).where(self._exchange.c.name == binding.exchange))
        if kind == Kind.TOPIC:
            # Also to who waits from now on: it may have read the bindings before this commit.
            self._database.announce(tx, {ROUTES}, by=self._announce)
        return True

    def unbind(self, binding: Binding) -> bool:
        return self._write(lambda tx: self._consumers.unbind(tx, *self._is(binding))) > 0

    def bindings(self, exchange: str | None = None) -> list[Binding]:
        b = self._binding
        of = [] if exchange is None else [b.c.exchange == exchange]
        rows = self._read(lambda tx: tx.execute(select(b).where(*of)).all())
        found = [Binding(row.exchange, row.queue, row.routing_key, pack_arguments(_load(row.arguments))) for row in rows]
        return sorted(found, key=lambda binding: (binding.exchange, binding.queue, binding.routing_key))

    def table(self, exchange: str, routing_key: str) -> RoutingTable:
        check_name("routing key", routing_key, least=0)
        b, q, e = self._binding, self._queue, self._exchange
        bound = (
            select(e.c.kind, b.c.routing_key, q)
            .select_from(b.join(q, q.c.name == b.c.queue).outerjoin(e, e.c.name == b.c.exchange))
            .where(b.c.exchange == exchange, or_(b.c.routing_key == routing_key, e.c.kind != Kind.DIRECT.value))
        )
        # Be it bound or not.
        declared = select(e.c.kind, *(null() for _ in (b.c.routing_key, *q.c))).where(e.c.name == exchange)
        rows = self._read(lambda tx: tx.execute(union_all(bound, declared)).all())
        entries = tuple((row.routing_key, _as_queue(row)) for row in rows if row.name is not None)
        return RoutingTable(Kind.parse(rows[0].kind if rows else None), entries)

    def route(self, exchange: str, routing_key: str) -> list[Queue]:
        if not exchange:
            return [self.queue(routing_key) or Queue(routing_key)]
        return self.table(exchange, routing_key).route(routing_key)

    # -- consumers ------------------------------------------------------------------------

    def consume(self, queue: str, lessee: int) -> bool:
        check_name("queue", queue)
        # Counting once more after a commit of unknown outcome would keep the queue for ever.
        return self._write(lambda tx: self._consumers.add(tx, queue, lessee), repeatable=False)

    def cancel(self, queue: str, lessee: int) -> bool:
        return self._write(lambda tx: self._consumers.remove(tx, queue, lessee), repeatable=False)

    def consumers(self, queue: str) -> int:
        return self._read(lambda tx: self._consumers.count(tx, queue))

    def touch(self, queues: Collection[str]) -> None:
        q, now = self._queue, self._database.now()
        stale = q.c.name.in_(queues) & (q.c.used_at < now - q.c.expires_for // 4)
        if self._read(lambda tx: tx.execute(select(q.c.name).where(stale).limit(1)).first()):
            self._write(lambda tx: tx.execute(update(q).where(stale).values(used_at=now)))

    def sweep(self, *, limit: int) -> list[str]:
        return self._consumers.sweep(limit)

    @property
    def has_unused(self) -> ColumnElement[bool]:
        """Whether `sweep` would find any, or consumers that are lost."""
        return self._consumers.has_unused()

    # -- transactions ---------------------------------------------------------------------

    def _read(self, work: Callable[[Connection], T]) -> T:
        if self._joins and self._database.in_transaction:
            return self._database.run(work, joins=True)
        return self._database.statement(work)

    def _write(self, work: Callable[[Connection], T], *, repeatable: bool = True) -> T:
        return self._database.run(work, repeatable=repeatable, joins=self._joins)

    def _is(self, binding: Binding) -> tuple[Any, ...]:
        b = self._binding.c
        return b.exchange == binding.exchange, b.queue == binding.queue, b.routing_key == binding.routing_key


def _exchange_values(exchange: Exchange) -> dict[str, Any]:
    return {
        "name": exchange.name,
        "kind": exchange.kind.value,
        "durable": int(exchange.durable),
        "auto_delete": int(exchange.auto_delete),
        "arguments": _dump(unpack_arguments(exchange.arguments)),
    }


def _as_exchange(row: Row[Any]) -> Exchange:
    return Exchange(
        row.name, Kind.parse(row.kind), bool(row.durable), bool(row.auto_delete), pack_arguments(_load(row.arguments))
    )


def _queue_values(queue: Queue) -> dict[str, Any]:
    arguments = queue.arguments
    return {
        "name": queue.name,
        "durable": int(queue.durable),
        "exclusive": int(queue.exclusive),
        "auto_delete": int(queue.auto_delete),
        "arguments": _dump(arguments.given()),
        "expires_for": None if arguments.expires_for is None else microseconds(arguments.expires_for),
        "message_ttl": None if arguments.message_ttl is None else microseconds(arguments.message_ttl),
    }


def _as_queue(row: Row[Any]) -> Queue:
    return Queue(row.name, bool(row.durable), bool(row.exclusive), bool(row.auto_delete), _queue_arguments(row.arguments))


@lru_cache(maxsize=1000)
def _queue_arguments(text: str) -> QueueArguments:
    return QueueArguments.parse(_load(text))


def _dump(given: Mapping[str, Any]) -> str:
    return json.dumps(given, sort_keys=True)


def _load(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text)
    return loaded
