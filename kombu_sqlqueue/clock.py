"""Where the time comes from: the database, or a test that moves it by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

__all__ = ["Clock", "FakeClock", "microseconds"]

MICROSECOND = timedelta(microseconds=1)


def microseconds(duration: timedelta) -> int:
    """The duration in whole microseconds, the unit of every time column."""
    return duration // MICROSECOND


class Clock(Protocol):
    """A clock to use instead of the database's own."""

    def now(self) -> int:
        """Microseconds since 1970-01-01 UTC."""


class FakeClock:
    """A clock that moves only when told to, so that tests never sleep.

    Starts at `start` microseconds since 1970-01-01 UTC.
    """

    def __init__(self, start: int = 1_700_000_000_000_000) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def advance(self, duration: timedelta) -> None:
        """Let `duration` pass."""
        self._now += microseconds(duration)
