"""Schedules: what they say, when their ticks are, and what becomes of ticks that are late. All of it pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, get_args

from ..errors import ScheduleError
from .cron import parse_cron, parse_crontab
from .solar import Solar
from .timing import Clocked, Cron, DSTMissing, DSTRepeated, Interval, Spec, WallInterval
from .windows import Window
from .zones import DAY, MICROSECOND, SECOND, Zone, instant_of, moment_of

__all__ = ["Definition", "DueTicks", "Kind", "Misfire", "Overlap", "Timetable", "due_ticks"]

Kind = Literal["cron", "crontab", "interval", "relative", "solar", "clocked"]
Misfire = Literal["skip", "fire_once", "fire_all"]
Overlap = Literal["allow", "skip", "queue_one"]

#: The shortest period of an interval, in microseconds.
MIN_PERIOD = SECOND // 1000
#: How late a tick may be that is not to be caught up, and one that is, if nothing is said.
SKIP_GRACE = 60 * SECOND
ONCE_GRACE = DAY
#: How many missed ticks are recorded one by one; the others with the oldest of these.
RECORDED = 100
#: How often to look for an open window before there is none.
OPENINGS = 1000
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a schedule is to do and when. Raises ScheduleError for what makes no sense.

    `spec` depends on `kind`: cron text, the five fields of a crontab, seconds between ticks, such seconds on a grid
    of wall time (`relative`), an event of the sun with latitude and longitude, or one moment (ISO 8601, with a zone).
    """

    name: str
    task: str
    kind: Kind
    spec: str
    timezone: str = "UTC"
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    enabled: bool = True
    misfire: Misfire = "fire_once"
    misfire_grace: timedelta | None = None
    misfire_limit: int = 1000
    overlap: Overlap = "allow"
    jitter: timedelta = timedelta(0)
    windows: Sequence[str] = ()
    anchor: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    when: str | None = None
    dst_repeated: DSTRepeated = "first"
    dst_missing: DSTMissing = "shift"

    def __post_init__(self) -> None:
        _text("name", self.name, 255)
        _text("task", self.task, 255)
        _text("spec", self.spec, 255)
        _text("timezone", self.timezone, 64)
        _choice("kind", self.kind, Kind)
        _choice("misfire", self.misfire, Misfire)
        _choice("overlap", self.overlap, Overlap)
        _choice("dst_repeated", self.dst_repeated, DSTRepeated)
        _choice("dst_missing", self.dst_missing, DSTMissing)
        for name in "args", "windows":
            _shape(name, getattr(self, name), list | tuple, "a list")
        for name in "kwargs", "options":
            _shape(name, getattr(self, name), Mapping, "a mapping of names to values")
        _least("misfire_limit", self.misfire_limit, 1)
        _least("max_runs", self.max_runs, 1)
        _least("jitter", self.jitter, timedelta(0))
        _least("misfire_grace", self.misfire_grace, timedelta(0))
        if self.when is not None and (len(self.when) > 255 or not _DOTTED.fullmatch(self.when)):
            raise ScheduleError(f"when is {self.when!r}, but must name a function: 'package.module.function'")
        for name in "anchor", "start_at", "end_at":
            if getattr(self, name) is not None:
                instant_of(getattr(self, name))
        Timetable(self, created_at=0)

    @classmethod
    def names(cls) -> list[str]:
        """The names of all fields."""
        return [each.name for each in fields(cls)]


class Timetable:
    """When the ticks of a schedule are: its spec within its windows, start and end."""

    def __init__(self, definition: Definition, *, created_at: int) -> None:
        self._of = definition
        self._zone = Zone.named(definition.timezone)
        anchor = definition.anchor or definition.start_at
        self._spec = _spec(definition, self._zone, created_at if anchor is None else instant_of(anchor))
        self._windows = [Window.parse(text) for text in definition.windows]
        self._end = math.inf if definition.end_at is None else instant_of(definition.end_at)
        self._start = created_at if definition.start_at is None else max(created_at, instant_of(definition.start_at) - 1)
        self._jitter = definition.jitter // MICROSECOND

    def first(self, *, now: int = 0) -> int | None:
        """The first tick after `now` that is not before the start."""
        return self.after(max(self._start, now))

    def after(self, instant: int) -> int | None:
        """The first tick after the instant, None if there is none."""
        for _ in range(OPENINGS):
            at = self._spec.after(instant)
            if at is None or at > self._end:
                return None
            if self.is_open(at):
                return at
            instant = self._next_opening(at) - 1
        return None

    def is_open(self, instant: int) -> bool:
        """Whether the instant lies in a window, if there are any."""
        if not self._windows:
            return True
        wall = self._zone.wall(instant)
        return any(window.holds(wall) for window in self._windows)

    def due(self, tick: int) -> int:
        """When to fire the tick: the same on every node, up to the jitter later, and never after the next one."""
        if not self._jitter:
            return tick
        following = self.after(tick)
        most = self._jitter if following is None else min(self._jitter, following - tick)
        digest = hashlib.sha256(f"{self._of.name} {tick}".encode()).digest()
        return tick + int.from_bytes(digest[:8], "big") % (most + 1)

    def newest(self, first: int, now: int, count: int) -> list[int]:
        """The last `count` ticks from `first` on that are due, in order. Takes about as many steps."""
        second = self.after(first)
        if second is None:
            return [first] if self.due(first) <= now else []
        span = max(second - first, 1) * count
        while True:
            start = first if now - span <= first else self.after(now - span)
            found = [] if start is None else self._walk(start, now, count)
            if len(found) == count or now - span <= first:
                return found
            span *= 2

    def _walk(self, start: int, now: int, count: int) -> list[int]:
        found: deque[int] = deque(maxlen=count)
        tick: int | None = start
        while tick is not None and tick <= now and self.due(tick) <= now:
            found.append(tick)
            tick = self.after(tick)
        return list(found)

    def _next_opening(self, instant: int) -> int:
        wall = self._zone.wall(instant)
        return min(max(self._zone.first(window.opens_after(wall)), instant + 1) for window in self._windows)


@dataclass(frozen=True, slots=True)
class DueTicks:
    """What to do with the ticks that are due: fire these, and record those as missed, with a reason."""

    fire: Sequence[int]
    missed: Sequence[tuple[int, str]]
    next_tick: int | None


def due_ticks(definition: Definition, timetable: Timetable, first: int, now: int) -> DueTicks:
    """What becomes of the ticks from `first` on, the earliest that nobody has handled.

    Misfire: `skip` and `fire_once` fire the newest, if it is not later than the grace (by default a
    minute and a day, and never more than to the tick after it); `fire_all` the newest `misfire_limit` within it.
    """
    wanted = definition.misfire_limit if definition.misfire == "fire_all" else 1
    ticks = timetable.newest(first, now, wanted + RECORDED)
    if not ticks:
        return DueTicks((), (), first)
    fire = [tick for tick in ticks[-wanted:] if _refusal(definition, timetable, tick, now) is None]
    fires = set(fire)
    reasons = [(tick, _refusal(definition, timetable, tick, now) or "newer") for tick in ticks if tick not in fires]
    if reasons and ticks[0] != first:
        reasons[0] = (reasons[0][0], f"{reasons[0][1]}, and all since {moment_of(first).isoformat()}")
    return DueTicks(fire, reasons, timetable.after(ticks[-1]))


def _refusal(definition: Definition, timetable: Timetable, tick: int, now: int) -> str | None:
    """Why a due tick is not fired now."""
    late = now - timetable.due(tick)
    if definition.misfire_grace is not None:
        grace = float(definition.misfire_grace // MICROSECOND)
    else:
        grace = {"skip": SKIP_GRACE, "fire_once": ONCE_GRACE, "fire_all": math.inf}[definition.misfire]
    if late > grace:
        return "late"
    # A tick near the end of a window may be a moment late all the same.
    return None if late <= SECOND * 10 or timetable.is_open(now) else "outside the windows by now"


def _spec(definition: Definition, zone: Zone, anchor: int) -> Spec:
    text = definition.spec
    match definition.kind:
        case "cron" | "crontab":
            fields = (parse_cron if definition.kind == "cron" else parse_crontab)(text)
            return Cron(fields, zone, definition.dst_repeated, definition.dst_missing)
        case "interval":
            return Interval(_period(text), anchor)
        case "relative":
            return WallInterval(_period(text), anchor, zone)
        case "solar":
            return _solar(text)
    return Clocked(_moment(text))


def _period(text: str) -> int:
    try:
        period = int(Decimal(text) * SECOND)
    except (InvalidOperation, ValueError, OverflowError):
        period = 0
    if period < MIN_PERIOD:
        raise ScheduleError(f"interval is {text!r}, but must be seconds between ticks, 0.001 or more")
    return period


def _solar(text: str) -> Solar:
    try:
        event, latitude, longitude = text.split()
        return Solar(event, float(latitude), float(longitude))
    except ScheduleError:
        raise
    except ValueError as error:
        raise ScheduleError(f"solar is {text!r}, but must be like 'sunset 48.2 16.4'") from error


def _moment(text: str) -> int:
    try:
        return instant_of(datetime.fromisoformat(text))
    except ScheduleError:
        raise
    except ValueError as error:
        raise ScheduleError(f"clocked is {text!r}, but must be a moment like 2030-01-31T12:00:00+00:00") from error


def _text(name: str, value: Any, longest: int) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise ScheduleError(f"{name} is {value!r}, but must be a text of 1 to {longest} characters")


def _shape(name: str, value: Any, kind: Any, said: str) -> None:
    if not isinstance(value, kind):
        raise ScheduleError(f"{name} is {value!r}, but must be {said}")


def _choice(name: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        raise ScheduleError(f"{name} is {value!r}, but must be one of {', '.join(get_args(choices))}")


def _least(name: str, value: Any, least: Any) -> None:
    if value is not None and value < least:
        raise ScheduleError(f"{name} is {value!r}, but must be {least} or more")
