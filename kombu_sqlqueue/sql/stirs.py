"""Being told by Linux that a file is written to. Elsewhere, or where it has no more to spare, nobody tells."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from typing import Any

__all__ = ["Stirs"]

#: Of <sys/inotify.h>: something was written to the file.
MODIFIED = 0x2


class Stirs:
    """Becomes readable when somebody writes to the watched file. What it is told of may not be committed yet."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def opened(cls) -> Stirs | None:
        """None where there is no such thing, or the user has too many."""
        with suppress(OSError, AttributeError):
            descriptor = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            return cls(descriptor) if descriptor >= 0 else None
        return None

    def fileno(self) -> int:
        return self._descriptor

    def watch(self, path: str) -> bool:
        """Watch the file that has this name now, besides those watched before; False if that is not possible."""
        watched: int = _libc().inotify_add_watch(self._descriptor, os.fsencode(path), MODIFIED)
        return watched >= 0

    def drain(self) -> bool:
        """Whether anybody has written since the last call."""
        stirred = False
        with suppress(BlockingIOError):
            while os.read(self._descriptor, 4096):
                stirred = True
        return stirred

    def close(self) -> None:
        os.close(self._descriptor)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
