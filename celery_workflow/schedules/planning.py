"""What is to become of a schedule that is due: which of its ticks fire, which do not and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .definition import DueTicks, due_ticks
from .state import Outcome, Schedule, Tick
from .zones import SECOND

__all__ = ["Plan", "fired", "plan", "reckoned"]

#: How often to look whether the tick before one that is queued has ended, in microseconds.
LOOK_AGAIN = SECOND


@dataclass(frozen=True, slots=True)
class Plan:
    """The ticks to fire, those that are not, and the one that waits for its predecessor to end."""

    fire: Sequence[int]
    not_fired: Sequence[Tick]
    queued: int | None
    next_tick: int | None


def plan(
    schedule: Schedule,
    now: int,
    *,
    is_live: Callable[[], bool],
    wanted: Callable[[int], bool],
) -> Plan:
    """Decide. `is_live` tells whether the last tick's task has not ended, `wanted` what `when` says of a tick."""
    definition = schedule.definition
    due = DueTicks((), (), None)
    if schedule.next_at is not None:
        due = due_ticks(definition, schedule.timetable, schedule.next_at, now)
    not_fired = [_tick(schedule, tick, now, Outcome.MISFIRED, reason) for tick, reason in due.missed]
    fire = list(due.fire)
    unwanted = [tick for tick in fire if not wanted(tick)]
    not_fired += [_tick(schedule, tick, now, Outcome.SKIPPED, "when") for tick in unwanted]
    fire = [tick for tick in fire if tick not in unwanted]
    queued = None
    if definition.overlap != "allow":
        fire, over, queued = _without_overlap(schedule, fire, is_live)
        not_fired += [_tick(schedule, tick, now, Outcome.SKIPPED, "overlap") for tick in over]
    if definition.max_runs is not None:
        left = max(definition.max_runs - schedule.runs, 0)
        not_fired += [_tick(schedule, tick, now, Outcome.SKIPPED, "max_runs") for tick in fire[left:]]
        fire = fire[:left]
        if left <= len(fire):
            return Plan(fire, not_fired, None, None)
    return Plan(fire, not_fired, queued, due.next_tick)


def fired(schedule: Schedule, now: int, plan: Plan, *, task_id: str | None, message: int | None) -> Schedule:
    """How the schedule stands after its plan was carried out, `task_id` the task of the last tick fired."""
    handled = [*plan.fire, *(tick.tick_at for tick in plan.not_fired)]
    last_at = max([*handled, schedule.last_at or 0], default=None) or None
    after = replace(schedule, next_at=plan.next_tick, last_at=last_at, queued_at=plan.queued, error=None)
    if plan.fire:
        late = now - schedule.timetable.due(plan.fire[-1])
        after = replace(after, last_fired_at=now, late_for=late, runs=schedule.runs + len(plan.fire))
        after = replace(after, last_task_id=task_id, last_message=message)
    due = None if plan.next_tick is None else schedule.timetable.due(plan.next_tick)
    if plan.queued is not None:
        due = min(now + LOOK_AGAIN, due or now + LOOK_AGAIN)
    return replace(after, due_at=due, finished_at=now if due is None else None)


def reckoned(schedule: Schedule, now: int) -> Schedule:
    """The schedule with its next tick reckoned from now, after somebody changed its row."""
    schedule = replace(schedule, created_at=schedule.created_at or now)
    tick = schedule.next_after(now)
    due = None if tick is None else schedule.timetable.due(tick)
    finished = now if due is None and schedule.active else None
    return replace(schedule, next_at=tick, due_at=due, queued_at=None, error=None, finished_at=finished)


def _without_overlap(
    schedule: Schedule, fire: Sequence[int], is_live: Callable[[], bool]
) -> tuple[list[int], Sequence[int], int | None]:
    """What fires, what is skipped, and what waits."""
    ticks = [*([] if schedule.queued_at is None else [schedule.queued_at]), *fire]
    if not ticks:
        return [], (), None
    live = is_live()
    starts = [] if live else ticks[:1]
    rest = ticks[len(starts) :]
    if schedule.definition.overlap == "queue_one" and rest:
        return starts, rest[1:], rest[0]
    return starts, rest, None


def _tick(schedule: Schedule, tick: int, now: int, outcome: Outcome, reason: str) -> Tick:
    late = now - schedule.timetable.due(tick)
    return Tick(schedule.id, tick, outcome, reason=reason, handled_at=now, late_for=late)
