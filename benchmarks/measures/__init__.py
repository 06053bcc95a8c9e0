"""What is measured. Importing this package fills `MEASURES`."""

from __future__ import annotations

from . import delays, load, sending, waiting
from .kinds import MEASURES, Measure, Metric, Plan

__all__ = ["MEASURES", "Measure", "Metric", "Plan", "delays", "load", "sending", "waiting"]
