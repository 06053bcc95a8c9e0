"""Definitions as rows: one for all runs of equal ones, remembered by the process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

from sqlalchemy import Connection, bindparam, select

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.direct import Direct

from ..engine.definition import Definition
from .remembered import Remembered
from .run_schema import RunTables
from .run_text import Values, checked_name

__all__ = ["Definitions"]

#: How many definitions a process remembers, and how many characters of them.
MOST = 500
CHARACTERS = 50_000_000
#: How often a definition is stored that is deleted again at once by who thinks that nobody needs it.
TRIES = 5


class Definitions:
    """The definitions of one database."""

    def __init__(self, database: Database, tables: RunTables, values: Values) -> None:
        self._dialect = database.dialect
        self._table = tables.definition
        self._values = values
        self._known: Remembered[str, Definition] = Remembered(most=MOST, characters=CHARACTERS)
        # Where statements touch more than what they name, a search for what is not there, and what inserts it unless it is
        # there, lock the place where others want to insert theirs: for as long as a caller's transaction takes.
        self._is_exact = Capability.GOES_BY_KEY in database.dialect.capabilities
        self._insert = database.dialect.inserting(self._table, {c.name: bindparam(f"of_{c.name}") for c in self._table.c})
        self._found = select(self._table.c.digest)
        # Shared with others who start such runs; held against who would delete it.
        self._held = self._found.with_for_update(read=True, key_share=True)
        self._hold_one = Direct(database, self._held.where(self._table.c.digest == bindparam("of_digest")))

    def store(self, tx: Connection, definitions: Collection[Definition]) -> None:
        """See to it that these are there until the transaction ends. Raises ValueError for names that cannot be stored."""
        wanted = {definition.digest: definition for definition in definitions}
        # In order, so that two who store the same do not wait for each other.
        digests = sorted(wanted)
        if self._is_exact and len(digests) == 1 and self._hold_one(tx, {"of_digest": digests[0]}):
            return
        for _ in range(TRIES):
            held = self._hold(tx, digests)
            digests = [digest for digest in digests if digest not in held]
            if not digests:
                return
            self._add(tx, [self._row(wanted[digest]) for digest in digests])
        raise AssertionError(f"definitions {digests} do not stay")

    def _hold(self, tx: Connection, digests: Sequence[str]) -> set[str]:
        """Those of them that are there, and will be."""
        digest = self._table.c.digest
        if not self._is_exact:
            digests = tx.scalars(self._found.where(digest.in_(digests))).all()
        return set(tx.scalars(self._held.where(digest.in_(digests)))) if digests else set()

    def _add(self, tx: Connection, rows: Sequence[dict[str, Any]]) -> None:
        if self._is_exact:
            tx.execute(self._dialect.insert_missing(self._table, rows))
            return
        for row in rows:
            self._insert(tx, {f"of_{name}": value for name, value in row.items()})

    def get(self, tx: Connection, digest: str) -> Definition:
        known = self._known.get(digest)
        if known is not None:
            return known
        query = select(self._table.c.body).where(self._table.c.digest == digest)
        # A caller's transaction that looks at an older state of things sees only what it locks.
        body = tx.scalar(query) or tx.execute(query.with_for_update(read=True, key_share=True)).scalar_one()
        definition = cast("Definition", self._values.loads(body))
        self._known.put(digest, definition, len(body))
        return definition

    def _row(self, definition: Definition) -> dict[str, Any]:
        for step in definition.steps:
            checked_name("step", step.name)
        return {
            "digest": definition.digest,
            "name": checked_name("workflow", definition.name),
            "version": definition.version,
            "fingerprint": definition.fingerprint,
            "body": self._values.dumps(definition),
        }
