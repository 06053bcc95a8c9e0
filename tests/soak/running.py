"""A soak from beginning to end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.results import SQLResultStore
from kombu_sqlqueue.sql.routing import SQLRoutingStore
from kombu_sqlqueue.sql.waiters import SQLWaiters

from ..celery.workers import Site, eventually
from .accounts import Account, account
from .cutting import cutter
from .havoc import Crew, Havoc
from .journal import JOURNAL, entries
from .scenario import Scenario

__all__ = ["Report", "leftovers", "soak"]

#: A result may be kept for a day; a lessee that was taken for dead is remembered for an hour.
LATER = timedelta(days=1, hours=2)


@dataclass(frozen=True)
class Report:
    """What a soak came to."""

    account: Account
    faults: Counter[str]
    seconds: float

    def __str__(self) -> str:
        a = self.account
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        repeats = ", ".join(f"{kind} {count}" for kind, count in sorted(a.explained.items())) or "none"
        return (
            f"{a.sent} tasks sent, {a.refused} refused, in {self.seconds:.0f} s; {a.starts} starts; faults: {faults};"
            f" repeats by what explains them: {repeats}; lost {a.lost}, stored twice {a.doubled}, shared {a.shared},"
            f" unexplained {a.unexplained}"
        )


def soak(site: Site, scenario: Scenario, *, restart: Callable[[bool], object] | None = None) -> Report:
    """Let the scenario happen and tell what became of it. Fails if it does not end in time."""
    journal = site.directory / "journal"
    site.environment[JOURNAL] = str(journal)
    began = time.monotonic()
    crew = Crew(site, scenario)
    havoc = Havoc(crew, scenario, cut=cutter(site.database), restart=restart)
    try:
        with havoc:
            eventually(lambda: havoc.error or not crew.producing, scenario.patience)
        # One that was killed a moment before has been started again.
        eventually(lambda: not crew.producing, scenario.patience)
        eventually(lambda: site.waiting() == 0, scenario.patience)
        crew.stop()
    finally:
        crew.close()
    one_writer = Capability.CONCURRENT_WRITERS not in process_for(site.database).database.dialect.capabilities
    (site.directory / "faults").write_text("\n".join(map(str, havoc.faults)))
    told = account(entries(journal), havoc.faults, stalls_all=scenario.stopped_for + 1 if one_writer else 0)
    return Report(told, Counter(fault.kind for fault in havoc.faults), time.monotonic() - began)


def leftovers(options: DatabaseOptions) -> dict[str, int]:
    """The tables that have rows a day later, when everything that passes has passed and nobody has worked since."""
    clock = FakeClock(time.time_ns() // 1000)
    database = Database(options, clock=clock)
    messages = SQLMessageStore(database)
    for _ in range(2):  # what is dead now, and what was taken for dead then
        clock.advance(LATER)
        messages.reclaim(max_reclaims=0, limit=1000)
        messages.expire(limit=10_000)
        SQLResultStore(database).prune(limit=100_000)
        SQLRoutingStore(database).sweep(limit=10_000)
        SQLWaiters(database).prune()
    names = ("message", "dead", "lessee", "consumer", "waiter", "result", "chord", "chord_part")
    tables = {name: getattr(database.tables, name) for name in names}
    counts = {
        name: database.run(lambda tx, table=table: tx.scalar(select(func.count()).select_from(table)))
        for name, table in tables.items()
    }
    database.dispose()
    return {name: count for name, count in counts.items() if count}
