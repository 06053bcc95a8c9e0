"""Signals of Celery's kind; the sender is the app. A receiver that raises is logged and harms nobody.

Of schedules: told on the node that handled a tick, after its transaction, once: `schedule` is the name, `tick` a `Tick`.

Of workflows: told in the process that brought the change about, after its transaction: `run` is the id, `entry` what the
journal has of it. Not told of what happens in a transaction of the caller's own. A process that is killed right there tells nobody: what has to happen is a step, or `on_success` and its like.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = [
    "schedule_fired",
    "schedule_misfired",
    "schedule_skipped",
    "step_failed",
    "step_started",
    "step_succeeded",
    "workflow_finished",
    "workflow_started",
    "workflow_waiting",
]

schedule_fired = Signal(name="schedule_fired", providing_args={"schedule", "tick"})
schedule_skipped = Signal(name="schedule_skipped", providing_args={"schedule", "tick"})
schedule_misfired = Signal(name="schedule_misfired", providing_args={"schedule", "tick"})

#: A run has begun, also again; is over.
workflow_started = Signal(name="workflow_started", providing_args={"run", "entry"})
workflow_finished = Signal(name="workflow_finished", providing_args={"run", "entry"})
#: A step sleeps or waits for a signal.
workflow_waiting = Signal(name="workflow_waiting", providing_args={"run", "entry"})
#: An attempt of a step, or of an item of a map, was sent to a worker; has succeeded; the step has failed for good.
step_started = Signal(name="step_started", providing_args={"run", "entry"})
step_succeeded = Signal(name="step_succeeded", providing_args={"run", "entry"})
step_failed = Signal(name="step_failed", providing_args={"run", "entry"})
