"""Finds runs that are not over and that nothing will move, and moves them. It should never find any."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

from ..engine.draft import task_id_of
from ..engine.events import ChildFinished, Event, StepSnoozed, TimerFired
from ..engine.invariants import faults
from ..engine.records import Key, RunRecord, StepRecord
from ..engine.states import IN_FLIGHT, StepState
from ..errors import RunNotFoundError
from .runtime import Runtime
from .store import Happening

__all__ = ["Reconciler"]

logger = logging.getLogger(__name__)

#: How many quiet runs one round looks at.
PAGE = 200
#: How late, in microseconds, a timer or the word of a child has to be to count as lost.
LATE = 30_000_000


class Reconciler:
    """Looks at runs of which nothing was heard for a while."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def run(self, *, quiet_for: timedelta) -> list[str]:
        """One round over all of them; what was wrong, in words, each logged as an error."""
        found: list[str] = []
        after = 0
        while page := self._runtime.store.stalled(quiet_for=quiet_for, limit=PAGE, after=after):
            found += self._look_at([run_id for _, run_id in page])
            after = page[-1][0]
        return found

    def _look_at(self, run_ids: list[str]) -> list[str]:
        here = self._runtime.home.is_broker
        alive = self._runtime.messages.owned(run_ids) if here else None
        found: list[str] = []
        for run_id in run_ids:
            try:
                stored, rows = self._runtime.store.whole(run_id)
            except RunNotFoundError:
                continue
            wrong = [f"run {run_id}: {fault}" for fault in faults(stored.definition, stored.record, rows)]
            now = self._runtime.store.now()
            if alive is not None and _missing(run_id, rows, alive):
                # What was sent between our two looks is not missing.
                alive = alive | self._runtime.messages.owned([run_id])
            for fault, event in self._repairs(stored.record, rows, alive, now):
                if not self._runtime.give(run_id, _if_as_seen(event, rows)).decision.ignored:
                    wrong.append(f"run {run_id}: {fault}")
            for text in wrong:
                logger.error("a workflow stood still: %s", text)
            found += wrong
        return found

    def _repairs(
        self, run: RunRecord, rows: Mapping[Key, StepRecord], alive: set[tuple[str, str]] | None, now: int
    ) -> Iterator[tuple[str, Event]]:
        missing = set() if alive is None else _missing(run.id, rows, alive)
        for key, record in rows.items():
            if key in missing:
                which: dict[str, Any] = {
                    "name": key.name,
                    "index": key.index,
                    "epoch": record.epoch,
                    "attempt": record.attempt,
                }
                yield f"the message of {_said(key)} is gone, sending it again", StepSnoozed(at=now, due_at=now, **which)
            elif (due := record.due_at) is not None and due < now - LATE and (kind := _timer_of(record)):
                yield (
                    f"the timer of {_said(key)} is gone, and it is due",
                    TimerFired(at=now, name=key.name, kind=kind, due_at=due),
                )
            elif record.state is StepState.EXPANDED and record.child_id is not None:
                yield from self._child(key, record, now)

    def _child(self, key: Key, record: StepRecord, now: int) -> Iterator[tuple[str, Event]]:
        assert record.child_id is not None
        try:
            child = self._runtime.store.get(record.child_id).record
        except RunNotFoundError:
            return
        told_long_ago = child.finished_at is not None and child.finished_at < now - LATE
        if child.state.is_over and told_long_ago and child.epoch >= record.child_epoch:
            yield (
                f"{_said(key)} was not told that run {child.id} has ended",
                ChildFinished(
                    at=now,
                    name=key.name,
                    index=key.index,
                    child_id=child.id,
                    child_epoch=child.epoch,
                    state=child.state,
                    result=self._runtime.store.result(child.id, Key("$run")),
                    error=child.error,
                ),
            )


def _missing(run_id: str, rows: Mapping[Key, StepRecord], alive: Collection[tuple[str, str]]) -> set[Key]:
    """The steps and items in flight whose messages are not there."""
    in_flight = ((key, record) for key, record in rows.items() if record.state in IN_FLIGHT)
    return {key for key, record in in_flight if (run_id, task_id_of(run_id, key, record.epoch)) not in alive}


def _timer_of(record: StepRecord) -> str | None:
    if record.state is StepState.MAPPING:
        return "expand" if record.expanding else None
    return {StepState.SLEEPING: "sleep", StepState.AWAITING: "timeout"}.get(record.state)


def _if_as_seen(event: Any, rows: Mapping[Key, StepRecord]) -> Happening:
    """The event, if its step is still as it was when we looked: what has moved meanwhile needs no help."""
    key = Key(event.name, getattr(event, "index", None))
    return lambda _, view: event if view.steps([key]).get(key) == rows.get(key) else None


def _said(key: Key) -> str:
    return f"step {key.name}" if key.index is None else f"item {key.index} of step {key.name}"
