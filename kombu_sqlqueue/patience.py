"""Writing again and again while a database is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kombu.exceptions import EncodeError, OperationalError

from .errors import MessageTooBigError, StoreUnavailableError

__all__ = ["OUTCOME_PATIENCE", "patiently"]

T = TypeVar("T")

#: For how many seconds the outcome of a task that runs here is tried to be written: what has been done shall not become a FAILURE.
OUTCOME_PATIENCE = 3600.0
#: The pauses between two tries, in seconds.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


def patiently(write: Callable[[], T], *, seconds: float, hopeless: Callable[[], bool] = lambda: False) -> T:
    """Do `write`, which may be repeated, as long as it takes the database to come back, up to so many seconds.

    Raises kombu's OperationalError after that, or once it is `hopeless`, and its EncodeError if the database does not take
    as much: the only two that Celery makes a task's FAILURE of.
    """
    until = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while True:
        try:
            return write()
        except MessageTooBigError as error:
            raise EncodeError(str(error)) from error
        except StoreUnavailableError as error:
            if hopeless() or time.monotonic() + pause > until:
                raise OperationalError(str(error)) from error
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 2)
