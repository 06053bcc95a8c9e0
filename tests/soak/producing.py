"""A producer: sends its numbers one after the other, and goes on where it was when it was killed.

python -m tests.soak.producing FIRST COUNT PACE
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from kombu.exceptions import OperationalError

from kombu_sqlqueue.errors import OutcomeUnknownError

from .journal import JOURNAL, entries, note
from .tasks import soak

#: Each so manieth task: has an ETA, takes long, has a result.
DELAYED, LONG, KEPT = 10, 50, 10


def main(first: int, count: int, pace: float) -> None:
    """Send what was not tried yet; what was being tried at the kill is left as it is."""
    numbers = range(first, first + count)
    tried = {entry.number for entry in entries(Path(os.environ[JOURNAL])) if entry.what == "try"}
    for number in numbers:
        if number not in tried:
            send(number)
            time.sleep(pace)


def send(number: int) -> None:
    note("try", number)
    seconds = 1.0 if number % LONG == 0 else 0.005 * (number % 3)
    countdown = 1 if number % DELAYED == 0 else None
    try:
        soak.apply_async((number, seconds), countdown=countdown, ignore_result=number % KEPT != 0)
    except (OperationalError, OutcomeUnknownError):
        note("refused", number)
    else:
        note("sent", number)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
