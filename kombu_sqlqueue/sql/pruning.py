"""Deleting what has expired, of all kinds: one look tells whether there is any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import ColumnElement, select

from .database import Database

__all__ = ["Kind", "Pruning"]

#: Whether something of a kind has expired, and what deletes it.
Kind = tuple[ColumnElement[bool], Callable[[], object]]


class Pruning:
    """What expires in one database."""

    def __init__(self, database: Database, kinds: Sequence[Kind]) -> None:
        self._database = database
        self._look = select(*(expired.label(f"kind{number}") for number, (expired, _) in enumerate(kinds)))
        self._prunes = [prune for _, prune in kinds]

    def run(self) -> None:
        """Delete some of what has expired."""
        found = self._database.statement(lambda tx: tx.execute(self._look).one())
        for expired, prune in zip(found, self._prunes, strict=True):
            if expired:
                prune()
