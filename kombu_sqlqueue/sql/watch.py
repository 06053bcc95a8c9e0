"""Noticing that a SQLite file has changed, at the price of reading a number now and then."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..errors import StoreUnavailableError
from .gate import GATE

__all__ = ["File", "Memory", "Watched", "Watcher"]

#: Seconds between two looks, and between two when nothing has changed for IDLE_AFTER seconds.
LOOK_EVERY = 0.005
LOOK_EVERY_IDLE = 0.015
IDLE_AFTER = 10.0


class Watched(Protocol):
    """What can be watched: a number that moves with every change."""

    def version(self) -> int: ...
    def close(self) -> None: ...


class Watcher:
    """Looks whether anything was written. `wait` belongs to one thread, `interrupt` to any."""

    def __init__(self, watch: Callable[[], Watched]) -> None:
        self._watch = watch
        self._watched: Watched | None = None
        self._interrupted = threading.Event()
        self._version = 0
        self._changed_at = time.monotonic()

    def wait(self, timeout: float) -> frozenset[str] | None:
        """None as soon as something was written by anyone; empty if nothing was within `timeout` seconds.

        Raises StoreUnavailableError if the file cannot be read.
        """
        until = time.monotonic() + timeout
        while not self._has_changed():
            left = until - time.monotonic()
            if left <= 0 or self._interrupted.wait(min(left, self._pause())):
                self._interrupted.clear()
                return frozenset()
        self._changed_at = time.monotonic()
        return None

    def interrupt(self) -> None:
        """Make `wait` return soon."""
        self._interrupted.set()

    def close(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.close()

    def _has_changed(self) -> bool:
        try:
            with GATE:
                return self._looks_changed()
        except sqlite3.Error as error:
            self.close()
            raise StoreUnavailableError(f"the database file cannot be watched: {error}") from error

    def _looks_changed(self) -> bool:
        if self._watched is None:
            self._watched = self._watch()
            self._version = self._watched.version()
            return True
        version = self._watched.version()
        changed, self._version = version != self._version, version
        return changed

    def _pause(self) -> float:
        return LOOK_EVERY if time.monotonic() - self._changed_at < IDLE_AFTER else LOOK_EVERY_IDLE


class File:
    """A database file, seen through a connection of its own."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)

    def version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._connection.close()


class Memory:
    """The only connection to a database that has no file, seen through what it counts."""

    def __init__(self, connection: Callable[[], sqlite3.Connection | None]) -> None:
        self._connection = connection

    def version(self) -> int:
        connection = self._connection()
        return connection.total_changes if connection is not None else 0

    def close(self) -> None:
        """The connection is not ours."""
