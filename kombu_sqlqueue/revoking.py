"""Revokes that outlive the message they came in: what is to be remembered of a remote command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Revocation", "RevocationStore", "revocations_in"]

#: Celery's exchanges for remote commands are called so, whatever the app calls its own.
PIDBOX = ".pidbox"


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


def revocations_in(exchange: str, message: Mapping[str, Any]) -> list[Revocation]:
    """What a message revokes: nothing, unless it is a remote command to all workers to revoke something."""
    if not exchange.endswith(PIDBOX) or message.get("content-type") != "application/json":
        return []
    try:
        command = json.loads(message["body"])
        if command.get("destination"):
            return []
        return _READERS.get(command.get("method"), _nothing)(command["arguments"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return []  # no command that a worker would understand


def _tasks(arguments: Mapping[str, Any]) -> list[Revocation]:
    ids = arguments["task_id"]
    return [Revocation(str(id)) for id in (ids if isinstance(ids, list) else [ids])]


def _stamps(arguments: Mapping[str, Any]) -> list[Revocation]:
    headers = arguments["headers"]
    if isinstance(headers, list):  # as the command line sends them
        headers = dict(each.split("=", 1) for each in headers)
    return [
        Revocation(json.dumps(stamp), header)
        for header, stamps in headers.items()
        for stamp in (stamps if isinstance(stamps, list) else [stamps])
    ]


def _nothing(arguments: Mapping[str, Any]) -> list[Revocation]:
    return []


_READERS = {"revoke": _tasks, "revoke_by_stamped_headers": _stamps}
