"""Cutting the connections that all have to a database, and restarting a server of our own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from kombu_sqlqueue.errors import StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.database import Database

__all__ = ["cutter", "restarter"]

#: The sessions of others, by dialect; what ends one of them.
SESSIONS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name LIKE 'sqlqueue%'",
    "mysql": "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = DATABASE()",
}
END = {"postgresql": "SELECT pg_terminate_backend(:id)", "mysql": "KILL :id"}


def cutter(options: DatabaseOptions) -> Callable[[], int]:
    """What ends the sessions that others have there; the answer is how many it was. A file has none."""

    def cut() -> int:
        database = Database(options)
        name = database.dialect.name
        try:
            ids = database.statement(lambda tx: tx.scalars(text(SESSIONS[name])).all()) if name in SESSIONS else []
            return sum(ended(database, END[name], id) for id in ids)
        finally:
            database.dispose()

    return cut


def ended(database: Database, end: str, id: int) -> bool:
    try:
        database.statement(lambda tx: tx.execute(text(end), {"id": id}))
    except (DBAPIError, StoreUnavailableError):
        return False  # it had gone by itself
    return True


def restarter(server: Any) -> Callable[[bool], None]:
    """What restarts a server of our own, after a shutdown or a crash."""

    def restart(crash: bool) -> None:
        if crash:
            # SIGQUIT: no checkpoint, and what was not on disk yet is lost.
            postmaster = psutil.Process(server.get_pid())
            os.kill(postmaster.pid, signal.SIGQUIT)
            postmaster.wait(30)
        else:
            server.stop()
        server.start()

    return restart
