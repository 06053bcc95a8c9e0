"""Noticing that a SQLite file has changed, at the price of reading a number now and then.

What costs is to wake up, not to look. So where the system tells of writing we sleep until then.
"""

from __future__ import annotations

import selectors
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ..errors import StoreUnavailableError
from .gate import GATE
from .stirs import Stirs

__all__ = ["File", "Memory", "Watched", "Watcher"]

#: Seconds between two looks, and between two when nothing has changed for IDLE_AFTER seconds.
LOOK_EVERY = 0.005
LOOK_EVERY_IDLE = 0.015
IDLE_AFTER = 10.0
#: Where we are told of writing we look at once, but a commit can be seen only when it is on disk: seconds until the next look,
#: which doubles up to LOOK_EVERY, how long to go on so, and seconds between two looks after that, should it take longer.
SOONEST = 0.001
ALERT_FOR = 0.1
LOOK_UNTOLD = 0.1


class Watched(Protocol):
    """What can be watched: a number that moves with every change."""

    #: The file that is written to, None if there is none.
    written: str | None

    def version(self) -> int: ...
    def close(self) -> None: ...


class Watcher:
    """Looks whether anything was written. `wait` belongs to one thread, `interrupt` to any."""

    def __init__(self, watch: Callable[[], Watched]) -> None:
        self._watch = watch
        self._watched: Watched | None = None
        self._stirs: Stirs | None = None
        self._ears: selectors.BaseSelector | None = None
        #: We have been told of some writing already.
        self._tells = False
        self._stirred_at = 0.0
        self._pipe, self._interrupter = socket.socketpair()
        self._pipe.setblocking(False)
        self._interrupter.setblocking(False)
        self._version = 0
        self._changed_at = time.monotonic()

    def wait(self, timeout: float) -> frozenset[str] | None:
        """None as soon as something was written by anyone; empty if nothing was within `timeout` seconds.

        Raises StoreUnavailableError if the file cannot be read.
        """
        until = time.monotonic() + timeout
        while not self._has_changed():
            left = until - time.monotonic()
            if left > 0:
                self._rest(left)
            if left <= 0 or self._was_interrupted():
                return frozenset()
        self._changed_at = time.monotonic()
        return None

    def interrupt(self) -> None:
        """Make `wait` return soon."""
        # It is full, so that `wait` is about to return, or closed.
        with suppress(OSError):
            self._interrupter.send(b"!")

    def close(self) -> None:
        self._look_away()
        self._pipe.close()
        self._interrupter.close()

    def _look_away(self) -> None:
        self._deafen()
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.close()

    def _has_changed(self) -> bool:
        try:
            with GATE:
                return self._looks_changed()
        except sqlite3.Error as error:
            self._look_away()
            raise StoreUnavailableError(f"the database file cannot be watched: {error}") from error

    def _looks_changed(self) -> bool:
        if self._watched is None:
            self._watched = self._watch()
            if self._watched.written is not None:
                self._listen()
            self._version = self._watched.version()
            return True
        version = self._watched.version()
        changed, self._version = version != self._version, version
        untold = changed and not self._is_stirred() and not self._tells
        if untold and time.monotonic() - self._stirred_at >= ALERT_FOR:
            # There are file systems on which nobody is ever told.
            self._deafen()
        return changed

    def _listen(self) -> None:
        self._tells = False
        # What is being written just now we were not told of.
        self._stirred_at = time.monotonic()
        self._stirs = Stirs.opened()
        if self._stirs is not None:
            self._ears = selectors.DefaultSelector()
            self._ears.register(self._pipe, selectors.EVENT_READ)
            self._ears.register(self._stirs, selectors.EVENT_READ)

    def _deafen(self) -> None:
        opened = self._ears, self._stirs
        self._ears = self._stirs = None
        for each in opened:
            if each is not None:
                each.close()

    def _rest(self, left: float) -> None:
        """Until it is time to look again, at most for the seconds `left`."""
        unchanged_for = time.monotonic() - self._changed_at
        if self._ears is None or not self._is_told():
            time.sleep(min(left, LOOK_EVERY if unchanged_for < IDLE_AFTER else LOOK_EVERY_IDLE))
        elif unchanged_for < LOOK_EVERY:
            # There is more to come, which is best taken in together.
            time.sleep(min(left, LOOK_EVERY - unchanged_for))
        elif self._is_stirred():
            time.sleep(min(left, SOONEST))
        else:
            quiet_for = time.monotonic() - self._stirred_at
            self._ears.select(min(left, min(LOOK_EVERY, max(SOONEST, quiet_for)) if quiet_for < ALERT_FOR else LOOK_UNTOLD))

    def _is_told(self) -> bool:
        """Whether we are told of writing to the file that is there now."""
        if self._stirs is None or self._watched is None or self._watched.written is None:
            return False
        return self._stirs.watch(self._watched.written)

    def _is_stirred(self) -> bool:
        """Whether somebody has written since this was asked last."""
        stirred = self._stirs is not None and self._stirs.drain()
        if stirred:
            self._stirred_at = time.monotonic()
            self._tells = True
        return stirred

    def _was_interrupted(self) -> bool:
        with suppress(BlockingIOError):
            return bool(self._pipe.recv(4096))
        return False


class File:
    """A database file, seen through a connection of its own."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)
        #: The write-ahead log. It stays as long as we are connected.
        self.written: str | None = f"{path}-wal"

    def version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._connection.close()


class Memory:
    """The only connection to a database that has no file, seen through what it counts."""

    written: str | None = None

    def __init__(self, connection: Callable[[], sqlite3.Connection | None]) -> None:
        self._connection = connection

    def version(self) -> int:
        connection = self._connection()
        return connection.total_changes if connection is not None else 0

    def close(self) -> None:
        """The connection is not ours."""
