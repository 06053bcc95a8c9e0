"""What a result, a group and a part of a chord are: frozen values, and the rule of which write wins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .messages import Lease

__all__ = ["FINAL", "NewResult", "Part", "Result", "Tally", "wins"]

SUCCESS = "SUCCESS"

#: The states in which a task has ended. Any other is on the way there, those of the users' own included.
FINAL = frozenset({SUCCESS, "FAILURE", "REVOKED"})


@dataclass(frozen=True, slots=True)
class NewResult:
    """What is to be known of a task from now on.

    `written_by` is the delivery whose outcome it is, None if it came from elsewhere: a client, or a
    worker on another broker. It is kept for `expires_in` after the write, for ever if that is None.
    """

    task_id: str
    state: str
    meta: bytes
    task: str | None = None
    written_by: Lease | None = None
    expires_in: timedelta | None = None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


@dataclass(frozen=True, slots=True)
class Result:
    """What is known of a task. `version` changes with every write."""

    task_id: str
    state: str
    meta: bytes
    version: int


def wins(state: str, written_by: Lease | None, *, over: str, stored_by: Lease | None) -> bool:
    """Whether a write of `state` replaces the stored state `over`.

    SUCCESS never changes. Otherwise a write that no delivery made replaces anything, and anything
    replaces what no delivery made. Between deliveries the later one wins; one delivery may go on
    writing until it has written a final state.
    """
    if over == SUCCESS:
        return False
    if written_by is None or stored_by is None:
        return True
    new, old = _moment(written_by), _moment(stored_by)
    return new > old or (new == old and over not in FINAL)


def _moment(lease: Lease) -> tuple[int, int]:
    # A later message has a greater id: a retry or a second request under the same task id is one.
    return lease.message_id, lease.delivery


@dataclass(frozen=True, slots=True)
class Part:
    """How one task of a chord's header ended. `place` is its place in the header, None for the end of it."""

    group_id: str
    task_id: str
    place: int | None
    meta: bytes

    @property
    def key(self) -> str:
        """What it is counted once by: one task may stand at several places of a header."""
        return f"{self.task_id}:{'' if self.place is None else self.place}"


@dataclass(frozen=True, slots=True)
class Tally:
    """How far a chord is. `size` is None until its header has been sent whole."""

    size: int | None
    extra: int
    returned: int
    finished: bool

    @property
    def is_due(self) -> bool:
        """All parts have returned, and the body was not sent yet."""
        return not self.finished and self.size is not None and self.returned >= self.size + self.extra
