"""Storing messages."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Insert,
    LargeBinary,
    SmallInteger,
    Text,
    bindparam,
    case,
    cast,
    delete,
    insert,
    literal,
    null,
    or_,
    select,
)
from sqlalchemy.types import TypeEngine

from ..clock import microseconds
from ..messages import Lease, NewMessage
from ..topics import later_topic, queue_topic
from .database import Database
from .dialect import Capability
from .direct import Direct
from .positions import Positions

__all__ = ["Commit", "Publishing"]

#: A queue and a priority other than 0.
Lane = tuple[str, int]

#: What a message brings, by other names than those of the columns that are made of it.
GIVEN: dict[str, type[TypeEngine[Any]]] = {
    "given_due_at": BigInteger,
    "given_expires_in": BigInteger,
    "given_queue": Text,
    "given_priority": SmallInteger,
    "given_task_id": Text,
    "given_task": Text,
    "given_owner": Text,
    "given_envelope": Text,
    "given_body": LargeBinary,
}


class Commit(enum.Enum):
    """How messages are committed."""

    DURABLE = enum.auto()
    """At once, and on disk."""
    UNHURRIED = enum.auto()
    """At once, but a crash may take it back."""
    FOREIGN = enum.auto()
    """By someone else, who knows when."""


class Publishing:
    """Stores new messages, and remembers which lanes are known to exist."""

    def __init__(self, database: Database, positions: Positions) -> None:
        self._database = database
        self._positions = positions
        self._known: set[Lane] = set()
        self._insert = self._build()
        self._insert_one = Direct(database, self._insert)
        self._insert_rows = self._build_rows()
        m = database.tables.message
        mine = m.c.id == bindparam("of_id"), m.c.deliveries == bindparam("of_delivery")
        self._delete_mine = Direct(database, delete(m).where(*mine))
        #: Empty where nothing is announced.
        self._announce: dict[Commit, Direct] = {}
        self._insert_and_announce: dict[Commit, Direct] = {}
        stored = self._insert.cte("stored")
        for commit in Commit:
            announcement = database.announcement(always=commit is Commit.FOREIGN)
            if announcement is not None:
                statement = announcement.where(database.dialect.unhurried()) if commit is Commit.UNHURRIED else announcement
                self._announce[commit] = Direct(database, statement)
                self._insert_and_announce[commit] = Direct(database, statement.add_cte(stored))

    def unknown_lanes(self, messages: Iterable[NewMessage]) -> set[Lane]:
        """The lanes of these messages that may lack their row; without it nobody claims from them."""
        return {(message.queue, message.priority) for message in messages if message.priority} - self._known

    def add_lanes(self, tx: Connection, lanes: Collection[Lane]) -> None:
        values = [{"queue": queue, "priority": priority} for queue, priority in sorted(lanes)]
        tx.execute(self._database.dialect.insert_missing(self._database.tables.lane, values))

    def remember_lanes(self, lanes: Collection[Lane]) -> None:
        """Their rows are committed; nobody ever deletes them."""
        self._known.update(lanes)

    def replace(self, tx: Connection, lease: Lease, *, if_gone: bool) -> bool:
        """Delete the message of this lease; False if it has gone on to a later delivery, or is gone, unless that is no matter."""
        m = self._database.tables.message
        if self._delete_mine.count(tx, {"of_id": lease.message_id, "of_delivery": lease.delivery}) == 1:
            return True
        return if_gone and tx.scalar(select(m.c.id).where(m.c.id == lease.message_id)) is None

    def store(self, tx: Connection, messages: Sequence[NewMessage], commit: Commit) -> None:
        """Insert the messages in this order, and wake who waits for their queues after the commit of `tx`."""
        topics = {(queue_topic if message.due_at is None else later_topic)(message.queue) for message in messages}
        if len(messages) == 1 and self._insert_and_announce:
            by = self._insert_and_announce[commit]
            self._database.announce(tx, topics, by=by, parameters=_values(messages[0]))
            return
        if len(messages) > 1 and self._insert_rows is not None:
            rows = [tuple(_values(message).values()) for message in messages]
            tx.execute(self._insert_rows, self._database.dialect.packed("given", len(GIVEN), rows))
        else:
            drawn = self._positions.parameters(tx, len(messages))
            values = [_values(message) | position for message, position in zip(messages, drawn, strict=True)]
            if len(values) == 1:
                self._insert_one.count(tx, values[0])
            else:
                tx.execute(self._insert, values)
        self._database.announce(tx, topics, by=self._announce.get(commit))

    def _build(self) -> Insert:
        """For messages one by one: each a set of parameters."""
        given = {name: bindparam(name, type_=kind()) for name, kind in GIVEN.items()}
        return insert(self._database.tables.message).inline().values(self._columns(given))

    def _build_rows(self) -> Executable | None:
        """For messages by the thousand: one text and nine lists, where lists can be parameters."""
        if Capability.ARRAYS not in self._database.dialect.capabilities:
            return None
        given = self._database.dialect.rows("given", **GIVEN)
        columns = self._columns(given.c)
        return insert(self._database.tables.message).inline().from_select(list(columns), select(*columns.values()))

    def _columns(self, given: Any) -> dict[str, ColumnElement[Any]]:
        now = self._database.now()
        ready = or_(given["given_due_at"].is_(None), given["given_due_at"] <= now)
        return {
            "position": case((ready, self._positions.drawn()), else_=null()),
            # With a cast, since a driver that writes NULL into the text leaves the type to be guessed.
            "due_at": case((ready, null()), else_=cast(given["given_due_at"], BigInteger)),
            "deliveries": literal(0),
            "reclaims": literal(0),
            "published_at": now,
            "expires_at": now + given["given_expires_in"],
            "queue": given["given_queue"],
            "priority": given["given_priority"],
            "task_id": given["given_task_id"],
            "task": given["given_task"],
            "owner": given["given_owner"],
            "envelope": given["given_envelope"],
            "body": given["given_body"],
        }


def _values(message: NewMessage) -> dict[str, Any]:
    """The values of `GIVEN`, in its order."""
    return {
        "given_due_at": message.due_at,
        "given_expires_in": None if message.expires_in is None else microseconds(message.expires_in),
        "given_queue": message.queue,
        "given_priority": message.priority,
        "given_task_id": message.task_id,
        "given_task": message.task,
        "given_owner": message.owner,
        "given_envelope": message.envelope,
        "given_body": message.body,
    }
