"""Nobody is inside a database library while the process forks.

A child inherits the libraries' locks as they are at that moment, but not the threads that would
let them go: SQLite's, held by one thread of the parent, would stop the child for ever.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

__all__ = ["GATE", "Gate"]

#: How long, in seconds, a fork waits for others to come out. Some wait for locks themselves.
PATIENCE = 2.0


class Gate:
    """Any number of threads pass, unless one wants to fork. A thread that is inside may enter again."""

    def __init__(self) -> None:
        self._reset()

    def __enter__(self) -> None:
        inside = getattr(self._mine, "inside", 0)
        with self._changed:
            if not inside:
                self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        self._mine.inside = inside + 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._mine.inside -= 1
        with self._changed:
            self._inside -= 1
            if self._closed:
                self._changed.notify_all()

    @property
    def holds_me(self) -> bool:
        """Whether this thread is inside: whoever asks then is a signal handler that interrupted it."""
        return bool(getattr(self._mine, "inside", 0))

    def close(self) -> None:
        """Let nobody in and wait until all others are out. What they wait for may be us: not for ever."""
        mine = getattr(self._mine, "inside", 0)
        until = time.monotonic() + PATIENCE
        with self._changed:
            self._closed = True
            while self._inside > mine and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())

    def open(self) -> None:
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._mine = threading.local()
        self._inside = 0
        self._closed = False


#: The gate of this process.
GATE = Gate()

os.register_at_fork(before=GATE.close, after_in_parent=GATE.open, after_in_child=GATE._reset)
