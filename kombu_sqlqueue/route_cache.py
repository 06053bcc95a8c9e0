"""What a process remembers of routes, so that a publish seldom has to ask for one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .routing import Kind, Queue, RoutingTable
from .routing_store import RoutingStore

__all__ = ["RouteCache"]

K = TypeVar("K")
V = TypeVar("V")

#: How long a direct route is believed, and what a queue named through the default exchange is like.
DIRECT_FOR = 5.0
#: How long the bindings of a topic exchange are believed: events come by the thousand.
TOPIC_FOR = 1.0
#: How long it is believed that a topic exchange leads nowhere: who has just begun to listen waits for events.
NOBODY_FOR = 0.25
#: The same while we are told of new bindings.
NOBODY_IF_TOLD = 10.0
#: Routing keys may be many, say one a reply: then old ones are forgotten.
ROUTES = 1000


class RouteCache:
    """Routes of one store, remembered for a short while. Safe to share between threads.

    What other processes declare is seen at the latest after

    * 5 s on a direct exchange that leads somewhere already; at once if it does not, or leads to
      a queue that may vanish;
    * 1 s on a topic exchange, a quarter of that if it led nowhere, or when we are told; at once for a lasting message that
      nobody wanted before;
    * no time on a fanout exchange, which is always read.

    Call `forget` after any change that this process made or is told of.
    """

    def __init__(self, store: RoutingStore, *, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        #: What was read, with the time before, and for how many seconds it is believed.
        self._tables: dict[tuple[str, str | None], tuple[float, float, RoutingTable]] = {}
        self._queues: dict[str, tuple[float, Queue]] = {}
        #: Until when, by `now`, we are told that a topic exchange leads to another queue.
        self.told_until = 0.0
        self._told_since = 0.0

    def route(self, exchange: str, routing_key: str, *, transient: bool = False) -> list[Queue]:
        """As `RoutingStore.route`. A `transient` message may be lost to a queue bound a moment ago."""
        if not exchange:
            return [self._queue(routing_key)]
        table = self._remembered(exchange, routing_key)
        found = table.route(routing_key) if table is not None else []
        if found or (table is not None and transient):
            return found
        return self._read(exchange, routing_key).route(routing_key)

    def forget(self) -> None:
        """Ask the store again for everything."""
        # New ones, not emptied ones: a thread that is just reading fills the old ones in vain.
        self._tables = {}
        self._queues = {}

    def doubt(self) -> None:
        """We may not have been told of something before now."""
        self._told_since = self._now()

    def _queue(self, name: str) -> Queue:
        queues, asked_at = self._queues, self._now()
        until, queue = queues.get(name, (0.0, None))
        if queue is None or until <= asked_at:
            [queue] = self._store.route("", name)
            _remember(queues, name, (asked_at + DIRECT_FOR, queue))
        return queue

    def _remembered(self, exchange: str, routing_key: str) -> RoutingTable | None:
        for key in (None, routing_key):
            known = self._tables.get((exchange, key))
            if known is not None and self._is_believed(*known):
                return known[-1]
        return None

    def _is_believed(self, asked_at: float, believed_for: float, table: RoutingTable) -> bool:
        now = self._now()
        if now < asked_at + believed_for:
            return True
        would_know = self._told_since <= asked_at and now < self.told_until
        return table.kind is Kind.TOPIC and not table.entries and would_know and now < asked_at + NOBODY_IF_TOLD

    def _read(self, exchange: str, routing_key: str) -> RoutingTable:
        tables, asked_at = self._tables, self._now()
        table = self._store.table(exchange, routing_key)
        if table.kind is Kind.TOPIC:
            believed_for = TOPIC_FOR if table.entries else NOBODY_FOR
            _remember(tables, (exchange, None), (asked_at, believed_for, table))
        elif table.kind is Kind.DIRECT and _lasts(table):
            _remember(tables, (exchange, routing_key), (asked_at, DIRECT_FOR, table))
        return table


def _lasts(table: RoutingTable) -> bool:
    return bool(table.entries) and not any(queue.is_temporary for _, queue in table.entries)


def _remember(where: dict[K, V], key: K, value: V) -> None:
    if len(where) >= ROUTES:
        where.clear()
    where[key] = value
