"""Revokes that outlive the message they came in: what is to be remembered of a remote command."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Revocation", "RevocationStore", "revocations_in"]


@dataclass(frozen=True, slots=True)
class Revocation:
    """A task that may not run any more, or every task stamped with `value` under the header `stamp`.

    `value` is the task's id, or the stamp as JSON.
    """

    value: str
    stamp: str = ""


class RevocationStore(Protocol):
    """What was revoked, for as long as a task that was sent before may still wait."""

    def revoke(self, revocations: Iterable[Revocation]) -> None:
        """Remember these, durably. Takes part in the transaction that is open."""

    def revoked(self) -> list[Revocation]:
        """All that is remembered, the oldest first."""

    def prune(self, *, limit: int) -> int:
        """Forget up to `limit` of what has been remembered long enough; the answer is how many."""


def revocations_in(command: Mapping[str, Any]) -> list[Revocation]:
    """What a remote command revokes: nothing, unless it is one to all workers to revoke something."""
    if command.get("destination") or command.get("pattern"):
        return []
    try:
        return _READERS.get(command.get("method", ""), _nothing)(command["arguments"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return []  # no command that a worker would understand


def _tasks(arguments: Mapping[str, Any]) -> list[Revocation]:
    ids = arguments["task_id"]
    return [Revocation(str(id)) for id in _each(ids)]


def _stamps(arguments: Mapping[str, Any]) -> list[Revocation]:
    headers = arguments["headers"]
    if isinstance(headers, list):  # as the command line sends them
        headers = dict(each.split("=", 1) for each in headers)
    return [Revocation(json.dumps(stamp), header) for header, stamps in headers.items() for stamp in _each(stamps)]


def _each(given: Any) -> Collection[Any]:
    return given if isinstance(given, list | tuple | set | frozenset) else [given]


def _nothing(arguments: Mapping[str, Any]) -> list[Revocation]:
    return []


_READERS = {"revoke": _tasks, "terminate": _tasks, "revoke_by_stamped_headers": _stamps}
