"""A beat that is stopped in the middle of a transaction does not keep its schedules from the others for long."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, func, select

__all__ = ["bound_stalls"]

#: A transaction in which nothing is said for so long is ended by the server.
STALL = timedelta(seconds=10)
MILLISECOND = timedelta(milliseconds=1)


def bound_stalls(tx: Connection) -> None:
    """Let the server end this transaction if we stall, where it can. SQLite's ends with its process only."""
    if tx.dialect.name == "postgresql":
        setting = func.set_config("idle_in_transaction_session_timeout", str(STALL // MILLISECOND), True)
        tx.execute(select(setting))
