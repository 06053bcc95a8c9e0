"""What producers and tasks write down, each line for itself, so that a kill loses none that was written."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["JOURNAL", "Entry", "entries", "note"]

#: Names the file, in the environment of whoever writes.
JOURNAL = "SOAK_JOURNAL"


@dataclass(frozen=True)
class Entry:
    """Something that happened to a task: `try`, `sent` or `refused` by its producer; `start`, `retry`, `broken`
    or `end` where it ran."""

    at: float
    what: str
    number: int
    pid: int
    #: Of the task's message, as ``message:delivery``; empty where a producer writes.
    lease: str = ""
    worker: str = ""
    retries: int = 0


def note(what: str, number: int, **facts: Any) -> None:
    """Write an entry, to the disk and in one piece."""
    line = json.dumps({"at": time.time(), "what": what, "number": number, "pid": os.getpid(), **facts}) + "\n"
    file = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
        if what in ("try", "sent", "refused"):
            os.fsync(file)
    finally:
        os.close(file)


def entries(path: Path) -> list[Entry]:
    """All that was written, in order."""
    if not path.exists():
        return []
    return [Entry(**json.loads(line)) for line in path.read_text().splitlines()]
