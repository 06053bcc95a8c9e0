"""Storing messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, case, delete, insert, null, or_, select

from ..clock import microseconds
from ..messages import Lease, NewMessage
from ..topics import queue_topic
from .database import Database
from .positions import Positions

__all__ = ["Publishing"]

#: A queue and a priority other than 0.
Lane = tuple[str, int]


class Publishing:
    """Stores new messages, and remembers which lanes are known to exist."""

    def __init__(self, database: Database, positions: Positions) -> None:
        self._database = database
        self._positions = positions
        self._known: set[Lane] = set()
        self._insert = self._build()

    def unknown_lanes(self, messages: Iterable[NewMessage]) -> set[Lane]:
        """The lanes of these messages that may lack their row; without it nobody claims from them."""
        return {(message.queue, message.priority) for message in messages if message.priority} - self._known

    def add_lanes(self, tx: Connection, lanes: Collection[Lane]) -> None:
        values = [{"queue": queue, "priority": priority} for queue, priority in sorted(lanes)]
        tx.execute(self._database.dialect.insert_missing(self._database.tables.lane, values))

    def remember_lanes(self, lanes: Collection[Lane]) -> None:
        """Their rows are committed; nobody ever deletes them."""
        self._known.update(lanes)

    def replace(self, tx: Connection, lease: Lease) -> bool:
        """Delete the message of this lease; False if it has gone on to a later delivery."""
        m = self._database.tables.message
        mine = delete(m).where(m.c.id == lease.message_id, m.c.deliveries == lease.delivery)
        return tx.execute(mine).rowcount == 1 or tx.scalar(select(m.c.id).where(m.c.id == lease.message_id)) is None

    def store(self, tx: Connection, messages: Sequence[NewMessage]) -> None:
        """Insert the messages in this order, and wake who waits for their queues."""
        drawn = self._positions.parameters(tx, len(messages))
        rows = [_parameters(message) | position for message, position in zip(messages, drawn, strict=True)]
        if len(rows) == 1:
            tx.execute(self._insert, rows[0])
        else:
            # Only an INSERT that returns something is sent with many rows at a time.
            tx.execute(self._insert.returning(self._database.tables.message.c.id), rows).all()
        self._database.announce(tx, {queue_topic(message.queue) for message in messages})

    def _build(self) -> Any:
        now = self._database.now()
        due_at = bindparam("given_due_at", type_=BigInteger)
        ready = or_(due_at.is_(None), due_at <= now)
        return (
            insert(self._database.tables.message)
            .inline()
            .values(
                position=case((ready, self._positions.drawn()), else_=null()),
                due_at=case((ready, null()), else_=due_at),
                deliveries=0,
                reclaims=0,
                published_at=now,
                expires_at=now + bindparam("given_expires_in", type_=BigInteger),
                queue=bindparam("given_queue"),
                priority=bindparam("given_priority"),
                task_id=bindparam("given_task_id"),
                task=bindparam("given_task"),
                envelope=bindparam("given_envelope"),
                body=bindparam("given_body"),
            )
        )


def _parameters(message: NewMessage) -> dict[str, Any]:
    return {
        "given_queue": message.queue,
        "given_priority": message.priority,
        "given_due_at": message.due_at,
        "given_expires_in": None if message.expires_in is None else microseconds(message.expires_in),
        "given_task_id": message.task_id,
        "given_task": message.task,
        "given_envelope": message.envelope,
        "given_body": message.body,
    }
