"""Results of steps, from their rows; of a map, those of its items."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..engine.states import StepState
from .run_schema import NO_INDEX
from .run_text import Values

__all__ = ["outputs_of"]


def outputs_of(rows: Iterable[Any], values: Values) -> dict[str, Any]:
    """By name; those without a result are missing. Rows have name, idx, state, total and result; a map comes before its items."""
    found: dict[str, Any] = {}
    totals: dict[str, int] = {}
    for row in rows:
        if row.idx == NO_INDEX and row.total is not None:
            totals[row.name] = row.total
            found[row.name] = [None] * row.total
        elif row.idx == NO_INDEX:
            if row.result is not None:
                found[row.name] = values.loads(row.result)
        elif row.idx < totals.get(row.name, 0) and row.state == StepState.SUCCEEDED.value:
            found[row.name][row.idx] = values.loads_given(row.result)
    return found
