"""What is done after a failure: again after how long, or what instead."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from ..errors import LONGEST
from .codec import storable

__all__ = ["MICRO", "NO_RETRY", "Error", "Otherwise", "RetryPolicy"]

#: Microseconds in a second.
MICRO = 1_000_000
MOST_FACTOR = 1000


@storable
class Otherwise(StrEnum):
    """What becomes of a step whose condition is not met, whose attempts are spent, whose signal did not come."""

    FAIL = "fail"
    #: It counts as done, with None for its result.
    SKIP = "skip"
    #: So does everything that follows it.
    SKIP_CASCADE = "skip-cascade"
    #: The run ends as discarded: given up on purpose, no alarm.
    DISCARD = "discard"


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """A failure, as text: what survives the process in which it happened."""

    type: str
    message: str = ""
    traceback: str = ""
    #: The full names of its class and that class's bases, for `no_retry_on`.
    kinds: tuple[str, ...] = ()
    permanent: bool = False

    def as_dict(self) -> dict[str, str]:
        """As handlers and users see it."""
        module = self.kinds[0].rpartition(".")[0] if self.kinds else ""
        return {"type": self.type, "module": module, "message": self.message, "traceback": self.traceback}


@storable
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed attempt is followed by another. Durations are in seconds.

    The nth failure is followed after ``delay * factor ** (n - 1)``, at most `max_delay`, less a random
    part of up to `jitter` of it; never later than `until` after the first attempt was due.
    """

    max_attempts: int = 1
    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 300.0
    jitter: float = 0.0
    until: float | None = None
    #: Names of error classes, full or last part, that are not tried again.
    no_retry_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1 or not 1 <= self.factor <= MOST_FACTOR:
            raise ValueError(f"not a retry policy: {self}")
        # What is no number at all is a TypeError by itself, NaN is in no range.
        durations = (self.delay, self.max_delay, 0 if self.until is None else self.until)
        if not all(0 <= seconds <= LONGEST for seconds in durations) or not 0 <= self.jitter <= 1:
            raise ValueError(f"not a retry policy: {self}")

    def allows(self, error: Error, failures: int) -> bool:
        """Whether so many failures, the last of them this error, leave another attempt."""
        return failures < self.max_attempts and not error.permanent and not self._vetoes(error)

    def delay_after(self, failures: int, *, seed: str) -> int:
        """Microseconds from the nth failure to the next attempt. The same seed draws the same jitter."""
        # Far enough that every factor has reached the cap, near enough that no power overflows.
        grown = min(self.max_delay, self.delay * self.factor ** min(failures - 1, 60))
        return round(MICRO * grown * (1 - self.jitter * _unit(seed)))

    def _vetoes(self, error: Error) -> bool:
        kinds = error.kinds or (error.type,)
        return any(kind in self.no_retry_on or kind.rpartition(".")[2] in self.no_retry_on for kind in kinds)


#: One attempt, as Celery does without a word.
NO_RETRY = RetryPolicy()


def _unit(seed: str) -> float:
    """A number in [0, 1) that looks random and is the same for the same seed."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7]) / 2**56
