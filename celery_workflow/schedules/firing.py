"""Firing what is due: any number of nodes may do it, each tick fires once.

A tick's record, its task and the schedule's next tick are one transaction on a locked row. Whoever dies in it
leaves nothing behind, and the next one does the whole again.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.utils.imports import symbol_by_name
from kombu.exceptions import OperationalError

from kombu_sqlqueue.errors import StoreUnavailableError

from .. import signals
from ..errors import ScheduleError
from ..home import Home
from ..sql.schema import RECKON
from .planning import Plan, fired, plan, reckoned
from .sending import Letter, Sender
from .state import Advance, Cause, Outcome, Schedule, Tick
from .zones import moment_of

__all__ = ["Firing"]

logger = logging.getLogger(__name__)

#: How many schedules one transaction handles, and after how many ticks it leaves the others to the next one: a node
#: that is killed before its commit has done nothing.
BATCH = 100
TICKS = 500
#: How long after an error a schedule is looked at again.
RETRY_IN = timedelta(seconds=30)
#: How many ticks may be backfilled at once.
BACKFILL = 1000
#: Errors that say nothing of the schedule that was handled.
AWAY = (StoreUnavailableError, OperationalError)
SIGNALS = {
    Outcome.FIRED: signals.schedule_fired,
    Outcome.SKIPPED: signals.schedule_skipped,
    Outcome.MISFIRED: signals.schedule_misfired,
}

#: What `when` said of a tick, by (schedule, tick).
Verdicts = dict[tuple[int, int], bool]


class Firing:
    """Fires the schedules of an app. Use it from one thread."""

    def __init__(self, app: Celery, home: Home) -> None:
        self._app = app
        self._home = home
        self._store = home.store()
        self._sender = Sender(app, home)
        self._node = f"{socket.gethostname()}:{os.getpid()}"
        self._verdicts: Verdicts = {}
        self._seen: list[Schedule] = []
        self._undecided: list[Schedule] = []
        self._broken: list[tuple[Schedule, ScheduleError]] = []
        self._has_more = False

    def run_once(self) -> int:
        """Fire all that is due; the answer is how many schedules were handled.

        An error in one schedule is noted in its row and stops no other. Raises StoreUnavailableError
        if the database is away.
        """
        handled = 0
        while True:
            done = self._round()
            handled += done
            if done < BATCH and not self._has_more:
                return handled

    def trigger(self, name: str) -> Tick:
        """Fire the schedule now, though it is paused or its last task still runs. Its next tick stays where it is."""

        def decide(tx: Any, now: int, rows: Sequence[Schedule]) -> Sequence[Advance]:
            tick = now
            while self._store.handled([(rows[0].id, tick)], Cause.MANUAL, within=tx):
                tick += 1
            return self._fire_ticks(tx, now, rows[0], [tick], Cause.MANUAL)

        self._sender.prepare()
        advances = self._store.fire_one(decide, name)
        self._tell(advances)
        return advances[0].ticks[0]

    def backfill(self, name: str, start: int, end: int) -> Sequence[Tick]:
        """Fire the ticks from start up to, not including, end that did not fire, in one transaction.

        Raises ScheduleError if they are more than a thousand.
        """

        def decide(tx: Any, now: int, rows: Sequence[Schedule]) -> Sequence[Advance]:
            # A tick that nobody has handled yet is a beat's.
            pending = now if rows[0].next_at is None else rows[0].next_at
            ticks = _between(rows[0], start, min(end, now, pending))
            gone = self._store.fired([(rows[0].id, tick) for tick in ticks], within=tx)
            left = [tick for tick in ticks if (rows[0].id, tick) not in gone]
            return self._fire_ticks(tx, now, rows[0], left, Cause.BACKFILL)

        self._sender.prepare()
        advances = self._store.fire_one(decide, name)
        self._tell(advances)
        return advances[0].ticks

    def close(self) -> None:
        """Give connections back."""
        self._sender.close()

    # -- rounds -------------------------------------------------------------------------------

    def _round(self) -> int:
        self._seen, self._undecided, self._broken = [], [], []
        self._verdicts = {}
        done = self._fire_together()
        if done is None:
            # One of them has an error, so each fires by itself.
            done = sum(self._fire_alone(schedule) for schedule in self._seen)
        for schedule, error in self._broken:
            self._blame(schedule, error, again_in=None)
        done += sum(self._fire_alone(schedule) for schedule in self._undecided)
        return done + len(self._broken)

    def _fire_together(self) -> int | None:
        try:
            return self._fire(limit=BATCH)
        except AWAY:
            raise
        except Exception:
            logger.debug("%d schedules cannot fire together", len(self._seen), exc_info=True)
            return None

    def _fire(self, *, limit: int, only: int | None = None) -> int:
        self._sender.prepare()
        advances = self._store.fire_due(self._decide, limit=limit, only=only)
        self._tell(advances)
        return len(advances)

    def _fire_alone(self, schedule: Schedule) -> int:
        try:
            self._judge(schedule)
            self._fire(limit=1, only=schedule.id)
        except AWAY:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, it is this schedule's
            self._blame(schedule, error, again_in=RETRY_IN)
        return 1

    def _blame(self, schedule: Schedule, error: Exception, *, again_in: timedelta | None) -> None:
        again = "" if again_in is None else f", trying again in {again_in.total_seconds():.0f} s"
        logger.error("schedule %r cannot fire%s: %s", schedule.name, again, error, exc_info=again_in is not None)
        self._store.blame(schedule, f"{type(error).__name__}: {error}", again_in=again_in)

    def _judge(self, schedule: Schedule) -> None:
        """Ask the schedule's `when`, which is somebody's code: outside of any transaction."""
        name = schedule.says["when"]
        if name is None or schedule.due_at == RECKON:
            return
        when: Callable[..., Any] = symbol_by_name(name)
        now = self._store.now()
        for tick in plan(schedule, now, is_live=lambda: False, wanted=lambda tick: True).fire:
            self._verdicts[schedule.id, tick] = bool(when(schedule.definition, moment_of(tick)))

    # -- within the transaction ---------------------------------------------------------------

    def _decide(self, tx: Any, now: int, rows: Sequence[Schedule]) -> Sequence[Advance]:
        self._seen, self._undecided, self._broken = list(rows), [], []
        self._has_more = False
        planned: list[tuple[Schedule, Plan]] = []
        advances: list[Advance] = []
        fires = 0
        for schedule in rows:
            if fires >= TICKS:
                self._has_more = True
                break
            try:
                if schedule.due_at == RECKON or (schedule.next_at is None and schedule.queued_at is None):
                    advances.append(Advance(reckoned(schedule, now)))
                elif (made := self._plan(tx, now, schedule)) is not None:
                    planned.append((schedule, made))
                    fires += len(made.fire)
                else:
                    self._undecided.append(schedule)
            except ScheduleError as error:
                self._broken.append((schedule, error))
        letters = [(schedule, tick, Cause.SCHEDULE) for schedule, made in planned for tick in made.fire]
        sent: dict[int, list[Tick]] = {schedule.id: [] for schedule, _ in planned}
        for tick in self._sent(tx, now, letters):
            sent[tick.schedule].append(tick)
        return advances + [self._advance(tx, now, schedule, made, sent[schedule.id]) for schedule, made in planned]

    def _plan(self, tx: Any, now: int, schedule: Schedule) -> Plan | None:
        """None if `when` has not been asked yet. Raises ScheduleError for what this broker cannot do."""
        if schedule.definition.overlap != "allow" and not self._home.is_broker:
            raise ScheduleError("overlap is decided from messages, which are elsewhere: use 'allow', or a sqlqueue broker")

        def wanted(tick: int) -> bool:
            return schedule.definition.when is None or self._verdicts[schedule.id, tick]

        try:
            return plan(schedule, now, is_live=lambda: self._store.live(tx, schedule), wanted=wanted)
        except KeyError:
            return None

    def _advance(self, tx: Any, now: int, schedule: Schedule, made: Plan, sent: Sequence[Tick]) -> Advance:
        after = fired(schedule, now, made, **self._last(tx, schedule, sent))
        return Advance(after, [*sent, *(replace(tick, node=self._node) for tick in made.not_fired)])

    def _fire_ticks(self, tx: Any, now: int, schedule: Schedule, ticks: Collection[int], cause: Cause) -> Sequence[Advance]:
        sent = self._sent(tx, now, [(schedule, tick, cause) for tick in ticks])
        if not sent:
            return [Advance(schedule)]
        last = self._last(tx, schedule, sent)
        after = replace(schedule, last_fired_at=now, last_task_id=last["task_id"], last_message=last["message"])
        return [Advance(after, sent)]

    def _sent(self, tx: Any, now: int, letters: Sequence[Letter]) -> Sequence[Tick]:
        """Send them, and say so."""
        ids = self._sender.send(tx, letters)
        return [
            Tick(
                schedule.id,
                tick,
                Outcome.FIRED,
                cause,
                handled_at=now,
                late_for=now - schedule.timetable.due(tick),
                task_id=task_id,
                node=self._node,
            )
            for (schedule, tick, cause), task_id in zip(letters, ids, strict=True)
        ]

    def _last(self, tx: Any, schedule: Schedule, sent: Sequence[Tick]) -> dict[str, Any]:
        """The last task sent, and its message where somebody will ask whether it is still there."""
        if not sent:
            return {"task_id": None, "message": None}
        task_id = sent[-1].task_id
        assert task_id is not None
        asked = self._home.is_broker and schedule.definition.overlap != "allow"
        return {"task_id": task_id, "message": self._store.message_of(tx, task_id) if asked else None}

    def _tell(self, advances: Sequence[Advance]) -> None:
        for advance in advances:
            for tick in advance.ticks:
                logger.info("schedule %r: tick %s %s", advance.schedule.name, moment_of(tick.tick_at), tick.outcome)
                SIGNALS[tick.outcome].send(sender=self._app, schedule=advance.schedule.name, tick=tick)


def _between(schedule: Schedule, start: int, end: int) -> list[int]:
    ticks: list[int] = []
    tick = schedule.timetable.after(start - 1)
    while tick is not None and tick < end:
        ticks.append(tick)
        if len(ticks) > BACKFILL:
            raise ScheduleError(f"a backfill of {schedule.name!r} has more than {BACKFILL} ticks: take a shorter range")
        tick = schedule.timetable.after(tick)
    return ticks
