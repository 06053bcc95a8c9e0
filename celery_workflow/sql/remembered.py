"""What a process remembers of what never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Remembered"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """The values used last, so many and of so many characters in all. Safe to share between threads."""

    def __init__(self, *, most: int, characters: int) -> None:
        self._most = most
        self._characters = characters
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._kept = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: K, value: V, size: int) -> None:
        """Remember a value that has so many characters as text."""
        if size > self._characters:
            return
        with self._lock:
            self._kept += size - self._values.pop(key, (value, 0))[1]
            self._values[key] = (value, size)
            while len(self._values) > self._most or self._kept > self._characters:
                self._kept -= self._values.popitem(last=False)[1][1]
