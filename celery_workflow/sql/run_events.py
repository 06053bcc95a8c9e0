"""Events that are stored until they are due, or until somebody delivers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import Connection, bindparam, delete, insert, select

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct

from ..engine.events import Event
from ..runs.store import TOPIC
from .run_schema import RunTables
from .run_text import Values

__all__ = ["Kind", "Stored", "StoredEvents"]

MICROSECOND = timedelta(microseconds=1)


class Kind(StrEnum):
    """What a stored event is there for."""

    #: A timer that the run has set.
    TIMER = "timer"
    #: The run's start time: its turn, if it has no key or its key is free.
    START = "start"
    #: The run has its key now.
    TURN = "turn"
    #: Word from another run.
    POST = "post"


@dataclass(frozen=True, slots=True)
class Stored:
    """An event on its way to a run."""

    run_id: str
    kind: Kind
    due_at: int
    event: Event


class StoredEvents:
    """The stored events of one database."""

    def __init__(self, database: Database, tables: RunTables, values: Values, *, prefix: str) -> None:
        self._database = database
        self._values = values
        self._topic = TOPIC.format(prefix=prefix)
        self._event = event = tables.event
        c = event.c
        self._insert = insert(event)
        self._bulk = insert(event).returning(c.id, sort_by_parameter_order=True)
        found = select(c.run, c.kind, c.due_at, c.body).where(c.id == bindparam("of_id"), c.due_at <= database.now())
        self._found = Direct(database, found)
        self._gone = Direct(database, delete(event).where(c.id == bindparam("of_id")))
        # Of those of one run, whom nobody else changes meanwhile.
        self._own = Direct(database, select(c.id).where(c.run == bindparam("of_run"), c.kind != Kind.POST.value))
        self._due = select(c.id).where(c.due_at <= database.now()).order_by(c.due_at, c.id)
        self._next = select(c.due_at, database.now().label("now")).order_by(c.due_at).limit(1)

    def store(self, tx: Connection, events: Sequence[Stored], now: int) -> list[int]:
        """The answer is their numbers. Who waits for what is due is woken, if that is later."""
        rows = [self._row(stored) for stored in events]
        ids = self._inserted(tx, rows) if rows else []
        if any(stored.due_at > now for stored in events):
            self._database.announce(tx, [self._topic])
        return ids

    def find(self, tx: Connection, event_id: int) -> Stored | None:
        """The event, if it is due."""
        rows = self._found(tx, {"of_id": event_id})
        if not rows:
            return None
        [row] = rows
        return Stored(row.run, Kind(row.kind), row.due_at, cast("Event", self._values.loads(row.body)))

    def take(self, tx: Connection, event_id: int) -> bool:
        """Delete the event; whether it was there."""
        return self._gone.count(tx, {"of_id": event_id}) == 1

    def forget(self, tx: Connection, run_id: str) -> None:
        """The run is over: nothing that it waited for is of any use. What others have to say to it is."""
        for row in self._own(tx, {"of_run": run_id}):
            self._gone.count(tx, {"of_id": row.id})

    def due(self, tx: Connection, limit: int) -> list[int]:
        return list(tx.scalars(self._due.limit(limit)))

    def next_due(self, tx: Connection) -> timedelta | None:
        row = tx.execute(self._next).first()
        return None if row is None else (row.due_at - row.now) * MICROSECOND

    def _inserted(self, tx: Connection, rows: Sequence[dict[str, Any]]) -> list[int]:
        if len(rows) > 1 and tx.dialect.insert_returning:
            return list(tx.scalars(self._bulk, rows))
        return [tx.execute(self._insert, row).inserted_primary_key[0] for row in rows]  # type: ignore[index]

    def _row(self, stored: Stored) -> dict[str, Any]:
        body = self._values.dumps(stored.event)
        return {"run": stored.run_id, "due_at": stored.due_at, "kind": stored.kind.value, "body": body}
