"""Tasks for later."""

from __future__ import annotations

import time

from ..figures import Values, percentile
from ..peers import Peer
from .kinds import Metric, Plan, measure

__all__: list[str] = []

PEERS = ["redis", "rabbitmq", "postgresql", "mariadb", "sqlite", "sqla-postgresql", "procrastinate", "pgqueuer", "dbos"]
#: The countdowns, in seconds.
LOW, HIGH = 1.0, 10.0


@measure(
    "eta",
    "ETA: how late tasks start whose countdown is 1 to 10 s",
    [
        Metric("late_p50", "half within", "ms", charted=True),
        Metric("late_p95", "95 % within", "ms", charted=True),
        Metric("late_max", "at most", "ms"),
        Metric("early", "too early", "tasks"),
    ],
    peers=PEERS,
    n=2000,
    quick=20,
    window=40,
)
def eta(peer: Peer, plan: Plan) -> Values:
    with peer.visit() as site:
        site.start_warm_worker()
        done = len(site.marks())
        # A countdown must not be over before its message is sent: the rest is what it takes to send them.
        site.do("delays", n=plan.n, low=LOW, high=HIGH)
        site.wait(done + plan.n, plan.window)
        late = [(mark.wall - mark.tag) * 1000 for mark in site.marks() if mark.tag > 0]
    return {
        "late_p50": percentile(late, 0.5),
        "late_p95": percentile(late, 0.95),
        "late_max": max(late),
        "early": sum(moment < 0 for moment in late),
    }


HOUR = 3600.0


@measure(
    "eta-far",
    "Far ETAs: a worker while 100,000 tasks wait for an hour",
    [
        Metric("memory", "memory of the main process", "MB", charted=True),
        Metric("grown", "of it because of them", "MB"),
        Metric("cpu", "CPU of the main process", "s"),
    ],
    peers=["redis", "rabbitmq", "postgresql", "mariadb", "sqlite", "sqla-postgresql"],
    n=100_000,
    quick=500,
    window=60,
)
def eta_far(peer: Peer, plan: Plan) -> Values:
    """Watched until its memory has not grown for ten seconds, or the window is over."""
    with peer.visit() as site:
        worker = site.start_warm_worker()
        before, spent = worker.memory(), worker.cpu()[0]
        site.do("fill", n=plan.n, countdown=HOUR)
        sizes = [worker.memory()]
        patience = min(10, int(plan.window / 2))
        deadline = time.monotonic() + plan.window
        while time.monotonic() < deadline:
            time.sleep(1)
            sizes.append(worker.memory())
            if len(sizes) > patience and sizes[-1] - sizes[-patience] < 0.5:
                break
        return {"memory": sizes[-1], "grown": sizes[-1] - before, "cpu": worker.cpu()[0] - spent}
