"""Values and names as text that every database can store."""

from __future__ import annotations

from typing import Any

from ..engine.codec import from_json, to_json
from ..runs.store import Serializer
from .column_types import LONGEST_NAME

__all__ = ["Values", "checked_name", "storable_text"]


class Values:
    """Values of users, and of this package, as text and back. None is stored, too: NULL means that there is no value."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def dumps(self, value: Any) -> str:
        """Raises ValueError or TypeError for what cannot be stored."""
        return self._serializer.dumps(to_json(value))

    def loads(self, text: str) -> Any:
        return from_json(self._serializer.loads(text))

    def dumps_given(self, value: Any) -> str | None:
        """As `dumps`, but NULL for None: where a value that is None and none at all are the same."""
        return None if value is None else self.dumps(value)

    def loads_given(self, text: str | None) -> Any:
        return None if text is None else self.loads(text)


def checked_name(what: str, name: str) -> str:
    """The name, which shall be found again by it.

    Raises ValueError if it is too long or has a NUL in it, TypeError if it is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} is {name!r}, but must be a str")
    if len(name) > LONGEST_NAME or "\0" in name:
        raise ValueError(f"{what} {name[:40]!r} cannot be stored: at most {LONGEST_NAME} characters, none of them NUL")
    return name


def storable_text(text: str) -> str:
    """What somebody said, for people to read. PostgreSQL stores no NUL."""
    return text.replace("\0", "")
