"""Producers that are killed in the middle of it: forks of this process, each killed after a random moment.

python -m tests.celery.killed_producer KILLS JOURNAL
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time

from .tasks import echo

#: A producer is killed within so many seconds of its first try.
LONGEST = 0.1


def main(kills: int, journal: str) -> None:
    """Start producers one after the other and kill each while it publishes."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    send(file, "parent")  # nothing is left to import
    for nth in range(kills):
        size = os.fstat(file).st_size
        child = os.fork()
        if not child:
            produce(file, nth)
        # Every fourth while it connects, the others once it is in full swing.
        until = size if nth % 4 == 0 else size + len(f"tried {nth}-0\nreturned {nth}-0\n") - 1
        while os.fstat(file).st_size <= until:
            time.sleep(0.001)
        time.sleep(random.uniform(0, LONGEST))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def produce(file: int, nth: int) -> None:
    """Publish for ever, and write down what was tried and what has returned."""
    for number in itertools.count():
        send(file, f"{nth}-{number}")


def send(file: int, task_id: str) -> None:
    write(file, f"tried {task_id}")
    echo.apply_async((task_id,), task_id=task_id)
    write(file, f"returned {task_id}")


def write(file: int, line: str) -> None:
    os.write(file, f"{line}\n".encode())
    os.fsync(file)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
