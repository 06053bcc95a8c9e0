"""Schedules as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, bindparam, delete, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from kombu_sqlqueue.sql.database import Database

from ..errors import DuplicateScheduleError, ScheduleError, ScheduleNotFoundError
from ..schedules.definition import Definition
from ..schedules.state import Advance, Cause, Outcome, Schedule, Tick
from ..schedules.store import Decide
from ..schedules.zones import MICROSECOND
from .schedule_rows import columns, schedule_of
from .schema import TIMING, Tables

__all__ = ["SQLScheduleStore"]

T = TypeVar("T")

#: What a firing writes of a schedule.
STANDING = (
    *("created_at", "next_at", "due_at", "last_at", "last_fired_at", "late_for", "last_task_id", "last_message"),
    *("queued_at", "runs", "finished_at", "error"),
)
#: How many rows one statement inserts.
ROWS = 500
LONGEST_REASON = 255


class SQLScheduleStore:
    """The `ScheduleStore` of one database."""

    def __init__(self, database: Database, tables: Tables) -> None:
        self._database = database
        self._schedule = tables.schedule
        self._tick = tables.tick
        self._run = tables.runs.run
        c = self._schedule.c
        # Built once: to build such a statement takes longer than to execute it.
        self._advance = (
            update(self._schedule)
            .where(c.id == bindparam("of"))
            .values({name: bindparam(f"new_{name}") for name in STANDING})
        )
        self._selected = select(self._schedule, database.now().label("now"))
        self._due = self._selected.where(c.due_at.is_not(None), c.due_at <= database.now()).order_by(c.due_at)

    # -- what people do ----------------------------------------------------------------------

    def create(self, definitions: Sequence[Definition], *, origin: str = "api", synced: Any = None) -> None:
        def store(tx: Connection) -> None:
            now = self._now(tx)
            rows = [self._new(definition, now, origin, synced) for definition in definitions]
            for start in range(0, len(rows), ROWS):
                tx.execute(insert(self._schedule), rows[start : start + ROWS])

        try:
            self._database.run(store)
        except IntegrityError as error:
            names = ", ".join(repr(definition.name) for definition in definitions[:3])
            raise DuplicateScheduleError(f"there is a schedule of that name already: {names}") from error

    def get(self, name: str) -> Schedule:
        return self._database.statement(lambda tx: self._one(tx, name))

    def list(self, *, after: str = "", limit: int = 100) -> list[Schedule]:
        c = self._schedule.c
        query = select(self._schedule).where(c.name > after).order_by(c.name).limit(limit)
        return self._database.statement(lambda tx: [schedule_of(row) for row in tx.execute(query).mappings()])

    def change(self, name: str, fields: Mapping[str, Any]) -> Schedule:
        unknown = set(fields) - set(Definition.names())
        if unknown:
            raise ScheduleError(f"a schedule has no {', '.join(sorted(unknown))}: it has {', '.join(Definition.names())}")

        def change(tx: Connection) -> Schedule:
            old = self._one(tx, name, lock=True)
            return self._rewrite(tx, old, replace(old, says={**old.says, **fields}))

        try:
            return self._database.run(change)
        except IntegrityError as error:
            raise DuplicateScheduleError(f"there is a schedule of that name already: {fields.get('name')!r}") from error

    def pause(self, name: str, note: str | None = None) -> None:
        self._rewritten(name, lambda old, now: replace(old, paused_at=now, note=note))

    def resume(self, name: str) -> Schedule:
        return self._rewritten(name, lambda old, now: replace(old, paused_at=None, note=None))

    def delete(self, name: str) -> None:
        def forget(tx: Connection) -> None:
            found = self._one(tx, name, lock=True)
            tx.execute(delete(self._tick).where(self._tick.c.schedule == found.id))
            tx.execute(delete(self._schedule).where(self._schedule.c.id == found.id))

        self._database.run(forget)

    def history(self, name: str, *, limit: int) -> Sequence[Tick]:
        t = self._tick.c
        query = select(self._tick).order_by(t.tick_at.desc()).limit(limit)

        def read(tx: Connection) -> list[Tick]:
            found = self._one(tx, name)
            return [_tick_of(row) for row in tx.execute(query.where(t.schedule == found.id)).mappings()]

        return self._database.statement(read)

    # -- what the configuration says ----------------------------------------------------------

    def synced(self, origin: str) -> Sequence[Schedule]:
        """All schedules that come from the configuration of that name."""
        query = select(self._schedule).where(self._schedule.c.origin == origin).order_by(self._schedule.c.name)
        return self._database.statement(lambda tx: [schedule_of(row) for row in tx.execute(query).mappings()])

    def sync_one(
        self,
        name: str,
        merge: Callable[[Schedule | None, int], Schedule | Definition | None],
        *,
        origin: str,
        synced: Any,
    ) -> None:
        """Let `merge` say what is to become of the schedule of that name, in one transaction.

        Given the schedule, locked, or None, it returns a changed one, or a definition to store, or None for nothing.
        """

        def merged(tx: Connection) -> None:
            row = tx.execute(self._named(name).with_for_update()).mappings().first()
            old = None if row is None else schedule_of(row)
            now = self._now(tx)
            new = merge(old, now)
            if isinstance(new, Definition):
                tx.execute(insert(self._schedule), [self._new(new, now, origin, synced)])
            elif new is not None and old is not None:
                # An entry that is gone may come back, and find what was edited since.
                stored = json.dumps(old.synced if synced is None else synced)
                self._rewrite(tx, old, new, origin=origin, synced=stored, removed_at=new.removed_at)

        try:
            self._database.run(merged)
        except IntegrityError:
            # Another beat stored it at the same moment: this time it is there.
            self._database.run(merged)

    # -- firing -------------------------------------------------------------------------------

    def now(self) -> int:
        return self._database.statement(self._now)

    def fire_due(self, decide: Decide, *, limit: int, only: int | None = None) -> Sequence[Advance]:
        query = self._due.limit(limit).with_for_update(skip_locked=True)
        if only is not None:
            query = query.where(self._schedule.c.id == only)
        return self._database.run(lambda tx: self._fire(tx, decide, query))

    def fire_one(self, decide: Decide, name: str) -> Sequence[Advance]:
        query = self._selected.where(self._schedule.c.name == name).with_for_update()

        def fire(tx: Connection) -> Sequence[Advance]:
            self._one(tx, name)
            return self._fire(tx, decide, query)

        return self._database.run(fire)

    def blame(self, schedule: Schedule, error: str, *, again_in: timedelta | None) -> None:
        c = self._schedule.c
        seen = c.due_at.is_(None) if schedule.due_at is None else c.due_at == schedule.due_at
        again = None if again_in is None else self._database.now() + literal(again_in // MICROSECOND)
        blamed = update(self._schedule).where(c.id == schedule.id, seen).values(error=error, due_at=again)
        self._database.run(lambda tx: tx.execute(blamed))

    def next_due(self) -> timedelta | None:
        c = self._schedule.c
        query = select(c.due_at, self._database.now().label("now")).where(c.due_at.is_not(None)).order_by(c.due_at).limit(1)
        row = self._database.statement(lambda tx: tx.execute(query).first())
        return None if row is None else (row.due_at - row.now) * MICROSECOND

    def handled(
        self, keys: Collection[tuple[int, int]], cause: str = Cause.SCHEDULE, *, within: Connection | None = None
    ) -> set[tuple[int, int]]:
        """As the contract; `within` the transaction of this connection, if one is given."""
        if not keys:
            return set()
        t = self._tick.c
        query = select(t.schedule, t.tick_at).where(
            t.cause == str(cause), t.schedule.in_({key[0] for key in keys}), t.tick_at.in_({key[1] for key in keys})
        )

        def read(tx: Connection) -> set[tuple[int, int]]:
            return {(row.schedule, row.tick_at) for row in tx.execute(query)} & set(keys)

        return self._database.statement(read) if within is None else read(within)

    def fired(self, keys: Collection[tuple[int, int]], *, within: Connection) -> set[tuple[int, int]]:
        """Which of these (schedule, tick) have fired, for whatever cause."""
        t = self._tick.c
        query = select(t.schedule, t.tick_at).where(
            t.outcome == Outcome.FIRED.value,
            t.schedule.in_({key[0] for key in keys}),
            t.tick_at.in_({key[1] for key in keys}),
        )
        return {(row.schedule, row.tick_at) for row in within.execute(query)} & set(keys)

    def live(self, tx: Connection, schedule: Schedule) -> bool:
        """Whether the message of the last tick, or of a retry of its task, is still waited for or worked on, or the run that the
        task has started."""
        if schedule.last_task_id is None or schedule.last_message is None:
            return False
        m = self._database.tables.message.c
        # A retry is a later message: those before need not be looked at.
        query = select(m.id).where(m.id >= schedule.last_message, m.task_id == schedule.last_task_id).limit(1)
        if tx.scalar(query) is not None:
            return True
        r = self._run.c
        return tx.scalar(select(r.number).where(r.id == schedule.last_task_id, r.finished_at.is_(None))) is not None

    def message_of(self, tx: Connection, task_id: str) -> int | None:
        """The number of the message of a task that was sent a moment ago."""
        m = self._database.tables.message.c
        found: int | None = tx.scalar(select(m.id).where(m.task_id == task_id).order_by(m.id.desc()).limit(1))
        return found

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        handled_at = self._tick.c.handled_at
        old = handled_at < self._database.now() - literal(older_than // MICROSECOND)

        def forget(tx: Connection) -> int:
            oldest = tx.scalars(select(handled_at).where(old).order_by(handled_at).limit(limit)).all()
            if not oldest:
                return 0
            return tx.execute(delete(self._tick).where(handled_at <= oldest[-1])).rowcount

        return self._database.run(forget)

    # -- within -------------------------------------------------------------------------------

    def _fire(self, tx: Connection, decide: Decide, query: Select[Any]) -> Sequence[Advance]:
        rows = tx.execute(query).mappings().all()
        if not rows:
            return ()
        advances = decide(tx, rows[0]["now"], [schedule_of(row) for row in rows])
        ticks = [_row_of(tick) for advance in advances for tick in advance.ticks]
        if ticks:
            tx.execute(insert(self._tick), ticks)
        standing = [_standing(advance.schedule) for advance in advances]
        if standing:
            tx.execute(self._advance, standing)
        return advances

    def _now(self, tx: Connection) -> int:
        now: int = tx.scalar(select(self._database.now()))  # type: ignore[assignment]
        return now

    def _named(self, name: str) -> Select[Any]:
        return select(self._schedule).where(self._schedule.c.name == name)

    def _one(self, tx: Connection, name: str, *, lock: bool = False) -> Schedule:
        query = self._named(name)
        row = tx.execute(query.with_for_update() if lock else query).mappings().first()
        if row is None:
            raise ScheduleNotFoundError(f"there is no schedule {name!r}: `celery workflow schedule list` shows them")
        return schedule_of(row)

    def _new(self, definition: Definition, now: int, origin: str, synced: Any) -> dict[str, Any]:
        values = columns(definition)
        schedule = Schedule(0, definition.name, {name: getattr(definition, name) for name in Definition.names()}, now)
        standing = _reckoned(schedule, now)
        return values | {
            "origin": origin,
            "synced": None if synced is None else json.dumps(synced),
            "created_at": now,
            "next_at": standing.next_at,
            "due_at": standing.due_at,
            "finished_at": now if standing.due_at is None and schedule.active else None,
        }

    def _rewritten(self, name: str, change: Callable[[Schedule, int], Schedule]) -> Schedule:
        def rewrite(tx: Connection) -> Schedule:
            old = self._one(tx, name, lock=True)
            return self._rewrite(tx, old, change(old, self._now(tx)))

        return self._database.run(rewrite)

    def _rewrite(self, tx: Connection, old: Schedule, new: Schedule, **more: Any) -> Schedule:
        """Write `new` over `old`, its next tick reckoned if that may be another one."""
        stored = columns(new.definition) | {"paused_at": new.paused_at, "note": new.note} | more
        before = columns_of_row(old)
        retimed = any(stored[name] != before[name] for name in TIMING) or new.removed_at != old.removed_at
        if retimed:
            new = _reckoned(replace(new, error=None, queued_at=None), self._now(tx))
            stored |= {"next_at": new.next_at, "due_at": new.due_at, "error": None, "queued_at": None}
            stored |= {"finished_at": None}
        tx.execute(update(self._schedule).where(self._schedule.c.id == old.id).values(stored))
        return new


def columns_of_row(schedule: Schedule) -> dict[str, Any]:
    """The timing columns as they are stored, also where they make no sense."""
    try:
        return columns(schedule.definition) | {"paused_at": schedule.paused_at}
    except ScheduleError:
        return dict.fromkeys(TIMING, object())


def _reckoned(schedule: Schedule, now: int) -> Schedule:
    tick = schedule.next_after(now)
    return replace(schedule, next_at=tick, due_at=None if tick is None else schedule.timetable.due(tick))


def _standing(schedule: Schedule) -> dict[str, Any]:
    return {"of": schedule.id} | {f"new_{name}": getattr(schedule, name) for name in STANDING}


def _row_of(tick: Tick) -> dict[str, Any]:
    return {
        "schedule": tick.schedule,
        "tick_at": tick.tick_at,
        "cause": tick.cause.value,
        "outcome": tick.outcome.value,
        "reason": None if tick.reason is None else tick.reason[:LONGEST_REASON],
        "handled_at": tick.handled_at,
        "late_for": tick.late_for,
        "task_id": tick.task_id,
        "node": tick.node,
    }


def _tick_of(row: Mapping[Any, Any]) -> Tick:
    return Tick(**{**row, "cause": Cause(row["cause"]), "outcome": Outcome(row["outcome"])})
