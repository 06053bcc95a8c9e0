"""What a task leaves behind: a record of 24 bytes in a file of its process.

So whoever watches counts bytes, and neither the broker nor the result backend notices. The monotonic clock
is the same in all processes of a machine: a sender's time and a worker's can be compared.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["Mark", "Marks"]

RECORD = struct.Struct("ddd")


class Mark(NamedTuple):
    #: What the sender gave the task: when it was sent, when it is due, or a number that means neither.
    tag: float
    monotonic: float
    wall: float


class Marks:
    """The records in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened: tuple[int, int] = (0, -1)

    def leave(self, tag: float) -> None:
        mark = Mark(tag, time.monotonic(), time.time())
        pid, file = self._opened
        if pid != os.getpid():
            pid = os.getpid()
            file = os.open(self._directory / f"{pid}.marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            self._opened = (pid, file)
        os.write(file, RECORD.pack(*mark))

    def count(self) -> int:
        return sum(path.stat().st_size for path in self._directory.glob("*.marks")) // RECORD.size

    def load(self) -> list[Mark]:
        """All of them, the first task first."""
        records = b"".join(path.read_bytes() for path in self._directory.glob("*.marks"))
        return sorted((Mark(*values) for values in RECORD.iter_unpack(records)), key=lambda mark: mark.monotonic)
