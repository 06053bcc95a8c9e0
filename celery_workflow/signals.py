"""Told on the node that handled a tick, after its transaction, once: `schedule` is the name, `tick` a `Tick`."""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = ["schedule_fired", "schedule_misfired", "schedule_skipped"]

schedule_fired = Signal(name="schedule_fired", providing_args={"schedule", "tick"})
schedule_skipped = Signal(name="schedule_skipped", providing_args={"schedule", "tick"})
schedule_misfired = Signal(name="schedule_misfired", providing_args={"schedule", "tick"})
