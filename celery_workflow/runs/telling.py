"""Tells receivers of Celery's kind what has become of runs."""

from __future__ import annotations

from typing import Any

from celery.utils.dispatch import Signal

from .. import signals
from ..engine.decision import Decision
from ..engine.states import RunState, StepState

__all__ = ["tell"]

OF_RUNS: dict[str, Signal] = {
    RunState.RUNNING: signals.workflow_started,
    **{state: signals.workflow_finished for state in RunState if state.is_over},
}
OF_STEPS: dict[str, Signal] = {
    StepState.SENT: signals.step_started,
    StepState.SUCCEEDED: signals.step_succeeded,
    StepState.FAILED: signals.step_failed,
    StepState.SLEEPING: signals.workflow_waiting,
    StepState.AWAITING: signals.workflow_waiting,
}


def tell(app: Any, decision: Decision) -> None:
    """What was decided, and is committed."""
    if decision.run is None:
        return
    for entry in decision.entries:
        signal = (OF_RUNS if entry.name is None else OF_STEPS).get(entry.state)
        if signal is not None and signal.receivers:
            signal.send(sender=app, run=decision.run.id, entry=entry)
