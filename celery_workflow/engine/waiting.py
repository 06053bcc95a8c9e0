"""Steps that wait without a worker: for a time, or for a signal."""

from __future__ import annotations

from dataclasses import replace

from . import finishing
from .definition import Wait
from .draft import Draft
from .events import SignalReceived, TimerFired
from .policies import Error
from .records import SignalRecord, StepRecord
from .states import StepState

__all__ = ["signalled", "sleep", "timer_fired", "wait"]


def sleep(draft: Draft, record: StepRecord, wake_at: int) -> None:
    draft.put(replace(record, state=StepState.SLEEPING, due_at=wake_at), "ready")
    draft.set_timer("sleep", wake_at, record.name)


def wait(draft: Draft, record: StepRecord, action: Wait) -> None:
    """Take the oldest signal that came before, or wait for the next."""
    buffered = draft.open_signals(action.signal)
    if buffered:
        _take(draft, record, buffered[0])
        return
    timeout = draft.resolve(action.timeout)
    due_at = None if timeout is None else draft.after(timeout)
    draft.put(replace(record, state=StepState.AWAITING, due_at=due_at), "ready")
    if due_at is not None:
        draft.set_timer("timeout", due_at, record.name)


def timer_fired(draft: Draft, event: TimerFired) -> str | None:
    """The sleep is over, or the signal has not come."""
    record = draft.step(event.name)
    if record.due_at != event.due_at:
        return "the timer was set for something else"
    if event.kind == "sleep" and record.state is StepState.SLEEPING:
        finishing.finish(draft, record, StepState.SUCCEEDED, "slept")
    elif event.kind == "timeout" and record.state is StepState.AWAITING:
        _time_out(draft, record)
    else:
        return "the step does not wait for it"
    return None


def signalled(draft: Draft, event: SignalReceived) -> str | None:
    """Give the signal to who has waited longest for its name, or keep it until somebody waits."""
    if draft.view.has_signal(event.id):
        return "the signal has come before"
    order = draft.run.signals + 1
    draft.put_run(replace(draft.run, signals=order))
    signal = SignalRecord(id=event.id, name=event.name, payload=event.payload, order=order, received_at=draft.at)
    draft.put_signal(signal)
    if waiters := _waiters(draft, event.name):
        _take(draft, waiters[0], signal)
    return None


def _take(draft: Draft, record: StepRecord, signal: SignalRecord) -> None:
    draft.put_signal(replace(signal, taken_by=record.name))
    draft.set_result(record.key, signal.payload)
    finishing.finish(draft, record, StepState.SUCCEEDED, "signal")


def _waiters(draft: Draft, name: str) -> list[StepRecord]:
    steps = draft.definition.main
    names = [step.name for step in steps if isinstance(step.action, Wait) and step.action.signal == name]
    waiters = [record for record in draft.mains(names) if record.state is StepState.AWAITING]
    return sorted(waiters, key=lambda record: record.changed_at)


def _time_out(draft: Draft, record: StepRecord) -> None:
    action = draft.declared(record).action
    assert isinstance(action, Wait)
    error = Error(type="SignalTimeout", message=f"no signal {action.signal!r} came in time", permanent=True)
    finishing.fail(draft, record, error, action.on_timeout, "timeout")
