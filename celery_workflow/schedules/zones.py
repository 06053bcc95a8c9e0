"""Wall clocks: at which instants a zone's clock shows a time, also where it jumps.

An instant is whole microseconds since 1970-01-01 UTC, a wall time a datetime without a zone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import ScheduleError

__all__ = ["DAY", "MICROSECOND", "SECOND", "Zone", "instant_of", "moment_of"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND = 1_000_000
DAY = 86_400 * SECOND
#: No clock was ever set by more than a day.
FARTHEST_JUMP = 26 * 3600 * SECOND


def instant_of(moment: datetime) -> int:
    """The instant of an aware datetime. Raises ScheduleError for one without a zone."""
    if moment.tzinfo is None:
        raise ScheduleError(f"{moment} has no time zone: give an aware datetime, such as datetime(…, tzinfo=UTC)")
    return (moment - EPOCH) // MICROSECOND


def moment_of(instant: int) -> datetime:
    """The instant as an aware datetime in UTC."""
    return EPOCH + timedelta(microseconds=instant)


class Zone:
    """The wall clock of an IANA time zone."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._zone = ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ScheduleError(
                f"timezone is {name!r}, but must be an IANA name such as 'Europe/Vienna' or 'UTC'"
            ) from error

    @staticmethod
    @lru_cache(maxsize=1024)
    def named(name: str) -> Zone:
        """The zone of that name, made once. Raises ScheduleError if there is none."""
        return Zone(name)

    def wall(self, instant: int) -> datetime:
        """What the clock shows at the instant."""
        return moment_of(instant).astimezone(self._zone).replace(tzinfo=None, fold=0)

    def first(self, wall: datetime) -> int:
        """The first instant at which the clock shows `wall` or has jumped over it.

        It never falls as `wall` rises.
        """
        at = self._instant(wall, fold=0)
        return at if self.wall(at) == wall else self._jump(wall)

    def last(self, wall: datetime) -> int:
        """The last instant at which the clock shows `wall`, or at which it jumps over it.

        It never falls as `wall` rises.
        """
        at = self._instant(wall, fold=1)
        return at if self.wall(at) == wall else self._jump(wall)

    def shows(self, wall: datetime) -> bool:
        """Whether the clock ever shows `wall`, or jumps over it."""
        return self.wall(self._instant(wall, fold=0)) == wall

    def set_back_after(self, instant: int) -> timedelta:
        """By how much the clock will have been set back a day later."""
        back = self._offset(instant) - self._offset(instant + FARTHEST_JUMP)
        return max(back, timedelta(0))

    def _instant(self, wall: datetime, *, fold: int) -> int:
        return instant_of(wall.replace(tzinfo=self._zone, fold=fold))

    def _offset(self, instant: int) -> timedelta:
        offset = moment_of(instant).astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset

    def _jump(self, wall: datetime) -> int:
        """The instant at which the clock jumps over `wall`, found by halving."""
        # With either offset of the jump `wall` lies on its wrong side.
        before, after = self._instant(wall, fold=1), self._instant(wall, fold=0)
        new = self._offset(after)
        while after - before > 1:
            middle = (before + after) // 2
            if self._offset(middle) == new:
                after = middle
            else:
                before = middle
        return after
