"""What the configuration says and what the rows say, brought together field by field.

A field that nobody touched since the last sync follows the configuration; one that an operator has changed
stays as he left it. Entries that are gone are disabled, and come back with all they had.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from .definition import Definition
from .state import Schedule

__all__ = ["Act", "Change", "compare", "merged", "said"]


class Act(enum.StrEnum):
    """What a sync does with a schedule."""

    CREATE = "create"
    CHANGE = "change"
    DISABLE = "disable"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the difference."""

    act: Act
    name: str
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """What a field was and will be."""
    kept: tuple[str, ...] = ()
    """Fields that the configuration says otherwise, but that an operator has changed."""

    def __str__(self) -> str:
        fields = "".join(f"\n    {name}: {old!r} -> {new!r}" for name, (old, new) in self.fields.items())
        kept = f"\n    kept as edited: {', '.join(self.kept)}" if self.kept else ""
        return f"{self.act} {self.name}{fields}{kept}"


def said(definition: Definition) -> dict[str, Any]:
    """The definition in what JSON has, to be compared with what was said before."""
    return {name: _plain(getattr(definition, name)) for name in Definition.names() if name != "name"}


def compare(wanted: Mapping[str, Definition], rows: Mapping[str, Schedule], origin: str) -> Iterator[Change]:
    """What a sync would do, in the order of the names. `rows` are those of that origin and those named in `wanted`."""
    for name in sorted({*wanted, *rows}):
        row = rows.get(name)
        if row is None:
            yield Change(Act.CREATE, name)
        elif name not in wanted:
            if row.removed_at is None:
                yield Change(Act.DISABLE, name)
        else:
            changed, kept = _fields(wanted[name], row)
            if row.origin != origin:
                yield Change(Act.ADOPT, name, changed, kept)
            elif changed or row.removed_at is not None or row.synced != said(wanted[name]):
                yield Change(Act.CHANGE, name, changed, kept)


def merged(wanted: Definition, row: Schedule, *, reset: bool = False) -> Schedule:
    """The row as it is after the sync; with `reset` an operator's edits are gone, his pause is not."""
    new = {name: getattr(wanted, name) for name in Definition.names()}
    kept = () if reset else _fields(wanted, row)[1]
    says = {name: row.says[name] if name in kept else value for name, value in new.items()}
    return replace(row, says=says, removed_at=None)


def _fields(wanted: Definition, row: Schedule) -> tuple[dict[str, tuple[Any, Any]], tuple[str, ...]]:
    """Which fields change, and which are kept though the configuration says otherwise."""
    now = said(wanted)
    # Of a row that the configuration never spoke of everything is somebody's choice.
    before = row.synced if row.synced is not None else {}
    stands = {name: _plain(row.says[name]) for name in now}
    edited = {name for name in now if name not in before or before[name] != stands[name]}
    differing = [name for name in now if stands[name] != now[name]]
    changed = {name: (stands[name], now[name]) for name in differing if name not in edited}
    return changed, tuple(name for name in differing if name in edited)


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, list | tuple) else value
