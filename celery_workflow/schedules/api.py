"""The schedules of an app, for its own code: create, edit, pause, fire, look."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry

from kombu_sqlqueue.sql.migrate import ensure

from ..errors import ScheduleError, ScheduleNotFoundError
from ..home import Home
from .converting import definition_of, spec_of
from .definition import Definition
from .firing import Firing
from .payload import frozen
from .state import Schedule, Tick
from .syncing import Act, Change, compare, merged, said
from .zones import instant_of, moment_of

__all__ = ["Schedules"]

logger = logging.getLogger(__name__)

#: How many schedules one page of a listing has.
PAGE = 500
LONGEST_NOTE = 255


class Schedules:
    """The schedules of `app`, in the database of its broker or the one that ``workflow_store_url`` names.

    Raises SchemaError if the tables are missing or old; it names the command to run.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._home = Home(app)
        ensure(self._home.database, self._home.line)
        self._store = self._home.store()

    @property
    def origin(self) -> str:
        """What rows from this app's configuration are marked with."""
        return f"config:{self._app.main or ''}"

    # -- looking ------------------------------------------------------------------------------

    def get(self, name: str) -> Schedule:
        """The schedule of that name. Raises ScheduleNotFoundError."""
        return self._store.get(name)

    def __iter__(self) -> Iterator[Schedule]:
        """All schedules in the order of their names."""
        page = self._store.list(limit=PAGE)
        while page:
            yield from page
            page = self._store.list(after=page[-1].name, limit=PAGE)

    def list(self, *, after: str = "", limit: int = PAGE) -> Sequence[Schedule]:
        """Up to `limit` schedules whose names come after `after`."""
        return self._store.list(after=after, limit=limit)

    def preview(self, name: str, count: int = 10) -> Sequence[datetime]:
        """When the next ticks fire, jitter included. A paused schedule shows when it would."""
        schedule = self._store.get(name)
        tick = schedule.timetable.first(now=max(self._store.now(), schedule.last_at or 0))
        found: list[datetime] = []
        while tick is not None and len(found) < count:
            found.append(moment_of(schedule.timetable.due(tick)))
            tick = schedule.timetable.after(tick)
        return found

    def history(self, name: str, limit: int = 20) -> Sequence[Tick]:
        """The latest ticks and what became of them."""
        return self._store.history(name, limit=limit)

    def lateness(self) -> timedelta:
        """By how much the longest due schedule is late; zero if none is. Where beats live it stays below a second or two."""
        due = self._store.next_due()
        return max(-due, timedelta(0)) if due is not None else timedelta(0)

    # -- changing -----------------------------------------------------------------------------

    def create(
        self, name: str, task: str, schedule: Any, *, args: Any = (), kwargs: Any = None, options: Any = None, **rules: Any
    ) -> Schedule:
        """Store a schedule; it has its first tick from now.

        `schedule` is what Celery takes (a crontab, a timedelta, seconds, a solar), cron text such as ``*/5 * * * *``
        or ``@daily``, or an aware datetime for once. `rules` are further fields of `Definition`.

        Raises ScheduleError for what makes no sense, DuplicateScheduleError if the name is taken.
        """
        entry = {"task": task, "schedule": schedule, "args": args, "kwargs": kwargs, "options": options, **rules}
        self._store.create([definition_of(self._app, name, entry)])
        return self._store.get(name)

    def create_many(self, definitions: Sequence[Definition]) -> None:
        """Store all of these, or none. Raises DuplicateScheduleError if a name is taken."""
        self._store.create(definitions)

    def edit(self, name: str, /, **fields: Any) -> Schedule:
        """Change fields of the definition, `schedule` as for `create`. Raises as `create`, and ScheduleNotFoundError.

        If that changes when it fires, its next tick is the first from now; its history and count stay.
        """
        if "schedule" in fields:
            kind, spec, _ = spec_of(self._app, name, fields.pop("schedule"), relative=bool(fields.pop("relative", False)))
            fields |= {"kind": kind, "spec": spec}
        for each in {"args", "kwargs", "options"} & set(fields):
            fields[each] = frozen(each, fields[each])
        return self._store.change(name, fields)

    def pause(self, name: str, note: str | None = None) -> None:
        """No ticks until `resume`; those due meanwhile never fire. A note has up to 255 characters."""
        if note is not None and len(note) > LONGEST_NOTE:
            raise ScheduleError(f"the note has {len(note)} characters, {LONGEST_NOTE} are allowed")
        self._store.pause(name, note)

    def resume(self, name: str) -> Schedule:
        """Go on with the first tick from now."""
        return self._store.resume(name)

    def delete(self, name: str) -> None:
        """Delete the schedule and its history."""
        self._store.delete(name)

    # -- firing -------------------------------------------------------------------------------

    def trigger(self, name: str) -> Tick:
        """Fire now, whatever its state; its grid stays where it is."""
        firing = Firing(self._app, self._home)
        try:
            return firing.trigger(name)
        finally:
            firing.close()

    def backfill(self, name: str, start: datetime, end: datetime) -> Sequence[Tick]:
        """Fire the ticks from start up to, not including, end that did not fire; at most a thousand at once."""
        firing = Firing(self._app, self._home)
        try:
            return firing.backfill(name, instant_of(start), instant_of(end))
        finally:
            firing.close()

    # -- the configuration --------------------------------------------------------------------

    def sync(
        self, entries: Mapping[str, Any] | None = None, *, dry_run: bool = False, reset: bool = False
    ) -> Sequence[Change]:
        """Bring the rows to what `beat_schedule` says, or these entries; the answer is what changed, or would.

        Rows whose entries are gone are disabled. What an operator has edited stays, unless `reset`; so does a pause.
        An entry that cannot be stored is logged, and its row, if there is one, left as it is.
        """
        given = self._app.conf.beat_schedule if entries is None else entries
        wanted, refused = self._definitions(given)
        rows = {row.name: row for row in self._store.synced(self.origin) if row.name not in refused}
        rows |= {name: row for name in wanted.keys() - rows.keys() if (row := self._found(name)) is not None}
        changes = list(compare(wanted, rows, self.origin))
        if reset:
            changes = [replace(change, kept=()) for change in changes]
            changed = {change.name for change in changes}
            changes += [Change(Act.CHANGE, name) for name in sorted(wanted.keys() & rows.keys() - changed)]
        if not dry_run:
            for change in changes:
                self._apply(change, wanted.get(change.name), reset=reset)
        return changes

    def _definitions(self, entries: Mapping[str, Any]) -> tuple[dict[str, Definition], set[str]]:
        wanted: dict[str, Definition] = {}
        refused = set()
        for key, entry in entries.items():
            name = str(key)
            try:
                wanted[name] = definition_of(self._app, name, _as_dict(entry))
            except ScheduleError as error:
                logger.error("an entry of beat_schedule cannot be stored: %s", error)
                refused.add(name)
        return wanted, refused

    def _found(self, name: str) -> Schedule | None:
        try:
            return self._store.get(name)
        except ScheduleNotFoundError:
            return None

    def _apply(self, change: Change, wanted: Definition | None, *, reset: bool) -> None:
        def merge(row: Schedule | None, now: int) -> Schedule | Definition | None:
            if wanted is None:
                return None if row is None else replace(row, removed_at=now)
            return wanted if row is None else merged(wanted, row, reset=reset)

        synced = None if wanted is None else said(wanted)
        self._store.sync_one(change.name, merge, origin=self.origin, synced=synced)


def _as_dict(entry: Any) -> Mapping[str, Any]:
    if isinstance(entry, ScheduleEntry):
        return {name: getattr(entry, name) for name in ("task", "schedule", "args", "kwargs", "options")}
    return entry  # type: ignore[no-any-return]
