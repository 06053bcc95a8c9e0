"""What a message, a lease and a delivery are: frozen values and pure rules."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import timedelta

__all__ = [
    "DeadMessage",
    "Delivery",
    "Lease",
    "NewMessage",
    "Outcome",
    "Promoted",
    "QueueCounts",
    "Reason",
    "Reclaimed",
]

_TAG = re.compile(r"(\d+):(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to one delivery of one message. Each claim raises `delivery`: it is the fence."""

    message_id: int
    delivery: int

    @property
    def tag(self) -> str:
        """The lease as text, as consumers see it: ``message:delivery``."""
        return f"{self.message_id}:{self.delivery}"

    @classmethod
    def parse(cls, tag: object) -> Lease | None:
        """The lease that `tag` names, or None for the tag of some other transport."""
        match = _TAG.fullmatch(tag) if isinstance(tag, str) else None
        return cls(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be stored in one queue.

    `due_at` is an instant (microseconds since 1970-01-01 UTC, None for at once);
    `expires_in` is how long after its publication nobody wants it any more. A `transient` one may
    be lost if the database crashes right afterwards. `owner` names what it is a part of.
    """

    queue: str
    body: bytes
    envelope: str
    priority: int = 0
    due_at: int | None = None
    expires_in: timedelta | None = None
    task_id: str | None = None
    task: str | None = None
    owner: str | None = None
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """A claimed message. `redelivered` says that it was claimed before."""

    lease: Lease
    queue: str
    priority: int
    body: bytes
    envelope: str
    reclaims: int

    @property
    def redelivered(self) -> bool:
        return self.lease.delivery > 1


class Reason(enum.StrEnum):
    """Why a message is dead."""

    REJECTED = "rejected"
    UNDECODABLE = "undecodable"
    RECLAIMS = "reclaims"
    """It was lost with its worker, or put back, more than `max_reclaims` times."""
    UNKNOWN_TASK = "unknown task"
    """It is parked: no worker knew its task, so it waits for one that does."""
    REFUSED = "refused"
    """The broker that a relay sends to does not take it."""
    WORKER_LOST = "worker lost"
    """It was acked early, so it may not run again, and its worker died."""


class Outcome(enum.Enum):
    """What became of a message that its holder put back."""

    READY = enum.auto()
    DEAD = enum.auto()
    LOST = enum.auto()
    """Someone else holds it now, or it is gone: nothing was changed."""


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message set aside after its last delivery. `holders` names who lost it, oldest first; `owner` what it is a part of."""

    id: int
    delivery: int
    queue: str
    priority: int
    body: bytes
    envelope: str
    task_id: str | None
    task: str | None
    reason: Reason
    reclaims: int
    holders: tuple[str, ...]
    died_at: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What a pass over expired lessees did: how many messages are ready again, how many died."""

    ready: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Promoted:
    """How many messages a promotion made ready, in which queues, and how long until the next one is due, if any waits."""

    ready: int = 0
    queues: frozenset[str] = frozenset()
    due_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many messages of one queue are where. `started` ones are leased too, but counted apart."""

    queue: str
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    started: int = 0
    dead: int = 0
