"""Workflow runs in a SQL database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, select

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct

from ..engine.decision import Decision
from ..engine.events import Event, Outcome, RunAdmitted
from ..engine.records import Key, RunView
from ..engine.states import IN_FLIGHT, RunState
from ..errors import InvalidTransitionError, RunNotFoundError
from ..runs.store import Effects, Happening, NewRun, Serializer, Written
from .lines import Lines
from .locked_run import Inherited, LockedRun, RunReads
from .new_runs import NewRuns
from .run_change import Change, Parts
from .run_events import Kind, Stored, StoredEvents
from .run_reader import RunReader
from .run_retention import RunRetention
from .run_rows import RUN_COLUMNS, run_of, stored_index
from .run_text import checked_name
from .run_writing import RunWrites
from .schema import Tables

__all__ = ["SQLRunStore"]


class SQLRunStore(RunReader):
    """The `RunStore` of one database."""

    def __init__(self, database: Database, tables: Tables, serializer: Serializer) -> None:
        super().__init__(database, tables, serializer)
        values, runs = self._values, tables.runs
        self._events = StoredEvents(database, runs, values, prefix=tables.prefix)
        self._lines = Lines(database, runs)
        self._parts = Parts(
            reads=RunReads(database, runs, values),
            writes=RunWrites(database, runs, values),
            events=self._events,
            lines=self._lines,
            new_runs=NewRuns(database, runs, values),
            definitions=self._definitions,
        )
        self._retention = RunRetention(database, runs)
        r = runs.run.c
        columns = [r[name] for name in (*RUN_COLUMNS, "number", "definition", "labels", "tenant", "priority", "changed_at")]
        found = select(*columns, database.now().label("now")).where(r.id == bindparam("of_id"))
        self._lock = Direct(database, found.with_for_update())
        self._lock_free = Direct(database, found.with_for_update(skip_locked=True))
        self._now = Direct(database, select(database.now().label("now")))
        self._exists = select(r.number).where(r.id == bindparam("of_id"))

    # -- changing -----------------------------------------------------------------------------

    def create(self, runs: Sequence[NewRun], effects: Effects) -> list[Written | None]:
        def work(tx: Connection) -> list[Written | None]:
            [told] = self._now(tx, {})
            change = Change(self._parts, tx, told.now, effects)
            created = change.create(runs)
            due = change.done()
            written = {place: _written(decision, due[events]) for place, (decision, events) in created.items()}
            return [written.get(place) for place in range(len(runs))]

        return self._database.run(work, joins=True) if runs else []

    def give(self, run_id: str, happening: Happening, effects: Effects) -> Written:
        def work(tx: Connection) -> Written:
            rows = self._lock(tx, {"of_id": run_id})
            if not rows:
                raise RunNotFoundError(f"there is no run {run_id}")
            change, view = self._locked(tx, rows[0], effects)
            event = happening(change.now, view)
            if event is None:
                return Written(decision=Decision(ignored="nothing happened"))
            if not effects.settle(tx) and isinstance(event, Outcome) and _is_current(view, event):
                return Written(decision=Decision(ignored="somebody else has the newest delivery"), lost=True)
            decision = change.happen(view, event)
            return _written(decision, change.done())

        return self._database.run(work, joins=True)

    def deliver(self, event_id: int, effects: Effects) -> Written | None:
        def work(tx: Connection) -> Written | None:
            stored = self._events.find(tx, event_id)
            if stored is None:
                return None
            rows = self._lock_free(tx, {"of_id": stored.run_id})
            if not rows:
                if tx.scalar(self._exists, {"of_id": stored.run_id}) is None:
                    self._events.take(tx, event_id)
                return None
            # Only now nobody else has it.
            if not self._events.take(tx, event_id):
                return None
            change, view = self._locked(tx, rows[0], effects)
            decision = self._delivered(tx, change, view, stored)
            return _written(decision, change.done())

        return self._database.run(work)

    def keep_memo(self, run_id: str, key: Key, name: str, value: Any) -> Any:
        text = self._values.dumps(value)
        row = {"step": key.name, "idx": stored_index(key.index), "name": checked_name("memo", name), "value": text}

        def keep(tx: Connection) -> str:
            number = tx.scalar(self._exists, {"of_id": run_id})
            if number is None:
                raise RunNotFoundError(f"there is no run {run_id}")
            tx.execute(self._database.dialect.insert_missing(self._tables.memo, [{"run": number, **row}]))
            kept: str = tx.execute(self._memo(number, key, name)).scalar_one()
            return kept

        return self._values.loads(self._database.run(keep))

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        return self._retention.prune(older_than, limit)

    # -- looking ------------------------------------------------------------------------------

    def now(self) -> int:
        return self._look(lambda tx: tx.execute(select(self._database.now())).scalar_one())

    def due(self, limit: int) -> list[int]:
        return self._look(lambda tx: self._events.due(tx, limit))

    def next_due(self) -> timedelta | None:
        return self._look(self._events.next_due)

    # -- within -------------------------------------------------------------------------------

    def _locked(self, tx: Connection, row: Any, effects: Effects) -> tuple[Change, LockedRun]:
        found = row._asdict()
        # The time is older than the lock if that was waited for: nothing happens before what happened last.
        change = Change(self._parts, tx, max(row.now, row.changed_at), effects)
        inherited = Inherited(self._values.loads_given(row.labels) or {}, row.tenant, row.priority)
        return change, change.view(row.number, run_of(found, self._values), row.definition, inherited)

    def _delivered(self, tx: Connection, change: Change, view: LockedRun, stored: Stored) -> Decision:
        event = self._event_of(tx, view, stored, change.now)
        if event is None:
            return Decision(ignored="it is not the run's turn")
        try:
            return change.happen(view, event)
        except InvalidTransitionError as error:
            # What another run asked for is not possible any more, however often it is tried.
            return Decision(ignored=str(error))

    def _event_of(self, tx: Connection, view: LockedRun, stored: Stored, now: int) -> Event | None:
        """What the stored event is to the run as it is now."""
        run = view.run
        key = run.concurrency_key
        if stored.kind in (Kind.START, Kind.TURN):
            if run.state is not RunState.PENDING:
                return None
            if key is not None:
                ask = self._lines.join if stored.kind is Kind.START else self._lines.has
                return RunAdmitted(at=now) if ask(tx, key, view.number) else None
            return RunAdmitted(at=now)
        return replace(stored.event, at=now)


def _written(decision: Decision, due: Sequence[int | None]) -> Written:
    return Written(decision=decision, due=tuple(number for number in due if number is not None))


def _is_current(view: RunView, event: Outcome) -> bool:
    key = Key(event.name, event.index)
    record = view.steps([key]).get(key)
    return (
        record is not None and record.state in IN_FLIGHT and (record.epoch, record.attempt) == (event.epoch, event.attempt)
    )
