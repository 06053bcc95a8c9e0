"""The contract of the result store. What a docstring says here, the conformance suite proves.

Time is the database's: callers say how long to keep something, never until when. Each method is
one transaction of its own; inside `Database.transaction` all take part in that one.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Protocol

from .results import NewResult, Part, Result, Tally

__all__ = ["ChordStore", "ResultStore"]


class ResultStore(Protocol):
    """The results of tasks and groups."""

    def store(self, result: NewResult) -> bool:
        """Store the result durably if it wins over what is there (`results.wins`); False if it does not.

        Concurrent writers are settled by the database. Who waits for results hears of a final one.
        """

    def fetch(self, task_ids: Collection[str], *, final: bool = False) -> list[Result]:
        """What is known of these tasks, in no order; of `final` results only, if so asked."""

    def forget(self, task_id: str) -> None:
        """Delete the result, whatever its state."""

    def save_group(self, group_id: str, meta: bytes, *, expires_in: timedelta | None) -> None:
        """Keep the group for `expires_in`, or for ever; a group saved before is replaced."""

    def group(self, group_id: str) -> bytes | None:
        """The group as it was saved, None if it was not, or no longer is."""

    def forget_group(self, group_id: str) -> None:
        """Delete the group, not the results of its tasks."""

    def prune(self, limit: int) -> int:
        """Delete up to `limit` expired results, as many groups and as many chords; the answer is how many.

        Less than `limit` says that nothing is left. Any number of processes may prune at once.
        """


class ChordStore(Protocol):
    """How many parts of a chord have returned. Each is counted once, however often it is told."""

    def open(self, group_id: str, *, header: bytes | None, expires_in: timedelta | None) -> None:
        """A chord is about to be sent; a finished one of that id starts anew.

        `header` is its shape, if that is more than a list of tasks: it comes back with the parts.
        """

    def set_size(self, group_id: str, size: int, *, expires_in: timedelta | None) -> None:
        """The header consists of `size` parts. A finished chord of that id starts anew."""

    def add(self, group_id: str, count: int = 1) -> None:
        """`count` more parts will return than the header had when it was sent."""

    def return_part(self, part: Part, *, replace: bool, expires_in: timedelta | None) -> Tally:
        """Count the part, if it is new; one that was told before is changed if `replace` is set.

        Inside a transaction the chord stays locked until its end, so of all who count parts one
        sees the chord as due. A finished chord is left alone. From now on it is kept for `expires_in`.
        """

    def parts(self, group_id: str) -> list[Part]:
        """The parts that have returned, in the order of the header."""

    def header(self, group_id: str) -> bytes | None:
        """The shape of the header as given to `open`."""

    def finish(self, group_id: str) -> bool:
        """The body is on its way: forget the parts, ignore what returns late. False if it was finished."""
