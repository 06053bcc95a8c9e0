"""Medians and percentiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["Values", "medians", "percentile"]

#: Of one visit: the names of metrics with their values. What could not be measured is missing.
Values = dict[str, float]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def medians(runs: Sequence[Values]) -> Values:
    """Of each metric, over those runs that have it."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    return {name: statistics.median(run[name] for run in runs if name in run) for name in names}
