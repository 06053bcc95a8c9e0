"""Remote commands, read on their way to the workers' mailboxes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.serialization import loads

__all__ = ["command_in"]

#: Celery's exchanges for remote commands are called so, whatever the app calls its own.
PIDBOX = ".pidbox"
#: What kombu calls a pickle.
PICKLE = "application/x-python-serialize"
UNREADABLE = (ContentDisallowed, DecodeError, pickle.PickleError, ValueError, TypeError, KeyError, IndexError, EOFError)


def command_in(exchange: str, message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The command to workers that is published as `message`, in whatever serializer; None if it is something else."""
    if not exchange.endswith(PIDBOX):
        return None
    try:
        command = _read(message["body"], message["content-type"], message["content-encoding"])
    except UNREADABLE:
        return None
    return command if isinstance(command, Mapping) and "method" in command else None


def _read(body: Any, content_type: str, content_encoding: str) -> Any:
    if content_type == PICKLE:
        return _Values(io.BytesIO(body)).load()
    return loads(body, content_type, content_encoding, accept=[content_type])


class _Values(pickle.Unpickler):
    """Reads what commands are made of, and cannot be made to run anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"no command contains a {module}.{name}")
