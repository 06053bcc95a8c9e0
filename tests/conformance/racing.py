"""What racing processes do. They are started afresh, so all they share is the database."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from threading import Barrier

from kombu_sqlqueue.messages import Lease, Reclaimed
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .sending import message

__all__ = ["acks", "prepare", "promotes", "publishes_and_claims", "reclaims", "reports"]

HOUR = timedelta(hours=1)

_starting_line: Barrier


def prepare(barrier: Barrier) -> None:
    global _starting_line
    _starting_line = barrier


class Racer:
    """A store of its own, with everybody else at the starting line."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._database = Database(options)

    def __enter__(self) -> SQLMessageStore:
        self._database.ping()
        _starting_line.wait(timeout=60)
        return SQLMessageStore(self._database)

    def __exit__(self, *error: object) -> None:
        self._database.dispose()


def publishes_and_claims(options: DatabaseOptions, name: str, count: int, of: int) -> dict[str, int]:
    """Publish so many messages, claiming beside it until there are no more; how often each was acked."""
    acked: Counter[str] = Counter()
    with Racer(options) as store:
        publishing = threading.Thread(target=_publish, args=(store, name, count))
        publishing.start()
        lessee = store.enrol(name, lease_for=HOUR)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            _claim(store, lessee, acked)
            if not publishing.is_alive() and not store.counts(["q", "p"]):
                break
        publishing.join()
    return dict(acked)


def _publish(store: SQLMessageStore, name: str, count: int) -> None:
    dice = random.Random(name)
    names = [f"{name} {number}" for number in range(count)]
    while names:
        size = dice.choice([1, 1, 1, 7, 20])
        some, names = names[:size], names[size:]
        store.publish([message(each, queue=dice.choice("qp"), priority=dice.choice([0, 0, 5])) for each in some])


def _claim(store: SQLMessageStore, lessee: int, acked: Counter[str]) -> None:
    deliveries = store.claim(["q", "p"], limit=random.choice([1, 8, 30]), lessee=lessee)
    body = {delivery.lease: delivery.body.decode() for delivery in deliveries}
    released = {lease for lease in body if random.random() < 0.1}
    store.release(released)
    acked.update(body[lease] for lease in store.ack(body.keys() - released))


def reclaims(options: DatabaseOptions, rounds: int) -> Reclaimed:
    ready = dead = 0
    with Racer(options) as store:
        for _ in range(rounds):
            back = store.reclaim(max_reclaims=5, limit=7)
            ready, dead = ready + back.ready, dead + back.dead
    return Reclaimed(ready, dead)


def acks(options: DatabaseOptions, leases: Sequence[Lease]) -> set[Lease]:
    good: set[Lease] = set()
    with Racer(options) as store:
        for place in range(0, len(leases), 3):
            good |= store.ack(leases[place : place + 3])
    return good


def promotes(options: DatabaseOptions, seconds: float) -> int:
    promoted = 0
    with Racer(options) as store:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            promoted += store.promote(limit=7).ready
    return promoted


def reports(options: DatabaseOptions, rounds: int) -> list[int]:
    with Racer(options) as store:
        return [dead.id for _ in range(rounds) for dead in store.claim_reports(limit=7, lease_for=HOUR)]
