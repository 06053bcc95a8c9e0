"""What was revoked, as rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import ColumnElement, delete, exists, select

from ..clock import microseconds
from ..revoking import Revocation
from ..routing import check_name
from .database import Database

__all__ = ["SQLRevocationStore"]

#: How long a revoke is remembered. A task that is due later than that runs.
REMEMBERED_FOR = timedelta(days=30)


class SQLRevocationStore:
    """Implements `kombu_sqlqueue.revoking.RevocationStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.tables.revocation

    def revoke(self, revocations: Iterable[Revocation]) -> None:
        statements = [self._remembered(revocation) for revocation in revocations]
        self._database.run(lambda tx: [tx.execute(statement) for statement in statements], joins=True)

    def _remembered(self, revocation: Revocation):  # type: ignore[no-untyped-def]
        check_name("revoked task or stamp", revocation.value)
        check_name("stamp", revocation.stamp, least=0)
        values = {
            "stamp": revocation.stamp,
            "value": revocation.value,
            "expires_at": self._database.now() + microseconds(REMEMBERED_FOR),
        }
        return self._database.dialect.upsert(self._table, values, update=["expires_at"])

    def revoked(self) -> list[Revocation]:
        t = self._table.c
        remembered = select(t.value, t.stamp).where(t.expires_at > self._database.now()).order_by(t.expires_at)
        return [Revocation(*row) for row in self._database.statement(lambda tx: tx.execute(remembered).all())]

    @property
    def has_expired(self) -> ColumnElement[bool]:
        """Whether `prune` would find any."""
        return exists().where(self._table.c.expires_at <= self._database.now())

    def prune(self, *, limit: int) -> int:
        t = self._table
        old = select(t.c.stamp, t.c.value).where(t.c.expires_at <= self._database.now()).limit(limit)
        found = self._database.statement(lambda tx: tx.execute(old).all())
        gone = [delete(t).where(t.c.stamp == row.stamp, t.c.value == row.value) for row in found]
        if gone:
            self._database.run(lambda tx: [tx.execute(statement) for statement in gone])
        return len(found)
