"""A store in memory and one in SQL that are told the same: what they decide and what they keep has to be equal."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, select

from celery_workflow.engine.codec import from_json, to_json
from celery_workflow.engine.decision import Decision
from celery_workflow.engine.definition import Definition
from celery_workflow.engine.events import Event, StepWithdrawn
from celery_workflow.engine.journal import Entry
from celery_workflow.engine.memory import MemoryRun, MemoryStore
from celery_workflow.engine.records import RunRecord
from celery_workflow.errors import InvalidTransitionError
from celery_workflow.runs.store import NewRun, Written
from celery_workflow.sql.runs import SQLRunStore
from kombu_sqlqueue.clock import FakeClock

from .recording import Recorder

MICROSECOND = timedelta(microseconds=1)


class Twins(MemoryStore):
    """The store in memory, which leads, and one in SQL, which is compared after each event."""

    def __init__(self, sql: SQLRunStore, clock: FakeClock) -> None:
        self._clock = clock
        self._sql = sql
        super().__init__(clock.now())
        self._effects = _Mirror(self)
        #: Stored events that have not been delivered, by number.
        self._stored: dict[int, tuple[str, Event]] = {}

    @property
    def now(self) -> int:
        return self._clock.now()

    @now.setter
    def now(self, value: int) -> None:
        self._clock.advance((value - self._clock.now()) * MICROSECOND)

    def create(self, run_id: str, definition: Definition, **rest: Any) -> MemoryRun:
        # A child is created in SQL by what its parent decided.
        if rest.get("parent") is None:
            new = NewRun(id=run_id, definition=definition, **rest)
            [written] = self._sql.create([new], self._effects)
            self._note(run_id)
            run = super().create(run_id, definition, **rest)
            assert written is not None
            assert written.decision.run == run.run
            return run
        return super().create(run_id, definition, **rest)

    def give(self, run_id: str, event: Any) -> Decision:
        """Let it happen in both; what was taken back is told at once, as the store in SQL does it."""
        decision = self._both(run_id, event)
        while withdrawn := [(of, post) for of, post in self.posts if isinstance(post, StepWithdrawn)]:
            self.posts.remove(withdrawn[0])
            super().give(*withdrawn[0])
        self._note(run_id)
        self.compare(run_id)
        return decision

    def _both(self, run_id: str, event: Event) -> Decision:
        number = next((number for number, stored in self._stored.items() if self._is_same(stored, (run_id, event))), None)
        written: Written | None = None
        if number is not None:
            del self._stored[number]
            written = self._sql.deliver(number, self._effects)
            assert written is not None
        else:
            try:
                written = self._sql.give(run_id, lambda now, view: event, self._effects)
            except InvalidTransitionError:
                with pytest.raises(InvalidTransitionError):
                    super().give(run_id, event)
                raise
        decision = super().give(run_id, event)
        assert from_json(to_json(written.decision.ignored)) == decision.ignored
        assert [to_json(send) for send in written.decision.sends] == [to_json(send) for send in decision.sends]
        return decision

    def _is_same(self, stored: tuple[str, Event], given: tuple[str, Event]) -> bool:
        return self.now == given[1].at and stored[0] == given[0] and _timeless(stored[1]) == _timeless(given[1])

    def _note(self, run_id: str) -> None:
        """Learn which events are stored now."""
        events = self._sql._tables.event
        known = {row.id: row for row in self._sql._look(lambda tx: tx.execute(select(events)).all())}
        self._stored = {number: at for number, at in self._stored.items() if number in known}
        for number, row in known.items():
            self._stored.setdefault(number, (row.run, self._sql._values.loads(row.body)))

    def compare(self, run_id: str) -> None:
        """All that is kept of the run."""
        run = self.get(run_id)
        stored, rows = self._sql.whole(run_id)
        assert stored.record == run.run
        assert rows == run.rows
        names = [key.name for key in run.outputs if key.index is None]
        maps = [record.name for record in run.rows.values() if record.total is not None]
        found = self._sql.results(run_id, [*names, *maps])
        assert found == from_json(to_json({name: run._result(name) for name in [*names, *maps]}))
        kept = [entry for _, entry in self._sql.journal(run_id)]
        assert kept == [from_json(to_json(entry)) for entry in run.journal if _is_kept(entry)]
        signals = sorted(run.received.values(), key=lambda signal: signal.order)
        assert self._sql.signals(run_id) == signals


class _Mirror(Recorder):
    """Effects for which a message has begun if it has in memory."""

    def __init__(self, memory: MemoryStore) -> None:
        super().__init__()
        self._memory = memory

    def take_back(self, tx: Connection, run: RunRecord, task_ids: Collection[str], *, terminate: bool) -> Collection[str]:
        running = {task_id for task_id, message in self._memory.messages.items() if message.leased}
        # Nobody has a message any more of which something came late.
        return [task_id for task_id in task_ids if task_id not in running and self._is_there(task_id)]

    def _is_there(self, task_id: str) -> bool:
        return task_id in self._memory.messages or task_id in self.messages


def _timeless(event: Event) -> Any:
    """The event without the moment at which it was stored."""
    return to_json(event) | {"at": 0}


def _is_kept(entry: Entry) -> bool:
    return entry.index is None or entry.why == "items" or entry.error is not None
