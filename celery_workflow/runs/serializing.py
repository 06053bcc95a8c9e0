"""Values of users as text: what Kombu's JSON can say, which is more than JSON (dates, decimals, UUIDs)."""

from __future__ import annotations

from typing import Any

from kombu.utils import json

from ..engine.codec import from_json, to_json

__all__ = ["JsonSerializer", "as_stored"]


class JsonSerializer:
    """Implements `Serializer`."""

    def dumps(self, value: Any) -> str:
        """Raises TypeError or ValueError for what it cannot say."""
        return str(json.dumps(value, separators=(",", ":")))

    def loads(self, text: str) -> Any:
        return json.loads(text)


def as_stored(value: Any) -> Any:
    """The value as it will be read. Raises TypeError or ValueError if it cannot be stored."""
    return from_json(json.loads(json.dumps(to_json(value))))
