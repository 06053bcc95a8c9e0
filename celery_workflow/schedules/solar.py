"""Where the sun is: the events of Celery's solar schedules, by the same library."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any

from ..errors import ScheduleError
from .zones import MICROSECOND, instant_of, moment_of

__all__ = ["EVENTS", "Solar"]

#: Each event: how ephem finds it, how far the sun is below the horizon then, and whether its centre counts.
EVENTS = {
    "dawn_astronomical": ("next_rising", "-18", True),
    "dawn_nautical": ("next_rising", "-12", True),
    "dawn_civil": ("next_rising", "-6", True),
    "sunrise": ("next_rising", "-0:34", False),
    "solar_noon": ("next_transit", "0", False),
    "sunset": ("next_setting", "-0:34", False),
    "dusk_civil": ("next_setting", "-6", True),
    "dusk_nautical": ("next_setting", "-12", True),
    "dusk_astronomical": ("next_setting", "-18", True),
}
#: Beyond the polar circles there may be none for half a year.
SEARCH_DAYS = 366


@dataclass(frozen=True, slots=True)
class Solar:
    """An event of the sun at a latitude and a longitude, in degrees. Needs the package ephem."""

    event: str
    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        if self.event not in EVENTS:
            raise ScheduleError(f"solar event is {self.event!r}, but must be one of {', '.join(sorted(EVENTS))}")
        if not (-90 <= self.latitude <= 90 and -180 <= self.longitude <= 180):
            raise ScheduleError(f"{self.latitude}, {self.longitude} is no place: latitude to 90, longitude to 180 degrees")

    def after(self, instant: int) -> int | None:
        """The next time of the event after the instant. Raises ScheduleError without the package ephem."""
        try:
            import ephem
        except ImportError as error:
            raise ScheduleError("solar schedules need the package ephem: pip install 'celery[solar]'") from error
        start = ephem.Date((moment_of(instant) + MICROSECOND).replace(tzinfo=None))
        return self._search(ephem, start, instant)

    def _search(self, ephem: Any, start: Any, instant: int) -> int | None:
        method, horizon, use_center = EVENTS[self.event]
        place, sun = ephem.Observer(), ephem.Sun()
        place.lat, place.lon, place.horizon = str(self.latitude), str(self.longitude), horizon
        place.pressure = place.elev = 0
        options = {"use_center": True} if use_center else {}
        for _ in range(SEARCH_DAYS):
            try:
                date = getattr(place, method)(sun, start=start, **options)
            except ephem.CircumpolarError:
                start = place.next_antitransit(sun, start=start)
                continue
            found = instant_of(date.datetime().replace(tzinfo=UTC))
            if found > instant:
                return found
            # Reckoned anew from its own moment, an event comes out a second later than before.
            start = ephem.Date(date + ephem.minute)
        return None
