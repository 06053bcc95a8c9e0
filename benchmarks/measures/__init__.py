"""What is measured."""

from __future__ import annotations

from . import delays, flows, load, sending, waiting
from .kinds import REGISTERED, Measure, Metric, Plan

__all__ = ["MEASURES", "Measure", "Metric", "Plan", "delays", "flows", "load", "sending", "waiting"]

#: All of them, in the order in which they run and are shown.
MEASURES: dict[str, Measure] = {
    name: REGISTERED[name]
    for name in (
        "consume",
        "consume-solo",
        "consume-threads",
        "publish",
        "latency",
        "results",
        "workflows",
        "eta",
        "eta-far",
        "idle",
        "flower",
        "contention",
        "backlog",
        "pinned",
    )
}
