"""Whether it is this very process that keeps a SQLite file locked.

SQLite does not tell who holds its lock, and a thread that waits for a transaction of its own waits in
vain. Linux tells, in /proc/locks.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_own_lock"]

LOCKS = Path("/proc/locks")
#: The byte of the -shm file that the writer locks (https://sqlite.org/walformat.html, WAL Locks).
WRITER = 120


def is_own_lock(path: str) -> bool:
    """Whether a connection of this process, whoever made it, is the file's writer now; False if nobody can tell."""
    try:
        inode = os.stat(f"{path}-shm").st_ino
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return False
    return any(_is_writer(line.split(), inode) for line in lines)


def _is_writer(fields: list[str], inode: int) -> bool:
    """The fields: number, class, kind, mode, pid, device:inode, first byte, last byte. A waiting lock has an arrow, too."""
    if len(fields) != 8 or fields[3] != "WRITE" or int(fields[4]) != os.getpid():
        return False
    _, _, of_inode = fields[5].rpartition(":")
    first, last = int(fields[6]), float("inf") if fields[7] == "EOF" else int(fields[7])
    return int(of_inode) == inode and first <= WRITER <= last
