"""What somebody who waits notices, and what waiting costs."""

from __future__ import annotations

import time

from ..figures import Values, percentile
from ..peers import PEERS, Peer
from .kinds import ALL, Metric, Plan, measure

__all__: list[str] = []

ACROSS = [name for name in ALL if not PEERS[name].in_process]


@measure(
    "latency",
    "Latency: from publish to the task's start, on an idle system",
    [
        Metric("p50", "half within", "ms", charted=True),
        Metric("p95", "95 % within", "ms", charted=True),
    ],
    peers=ACROSS,
    n=200,
    quick=10,
)
def latency(peer: Peer, plan: Plan) -> Values:
    with peer.visit() as site:
        site.start_warm_worker()
        done = len(site.marks())
        site.do("latency", n=plan.n, gap=0.05)
        site.wait(done + plan.n, plan.window)
        taken = [(mark.monotonic - mark.tag) * 1000 for mark in site.marks() if mark.tag > 0]
    return {"p50": percentile(taken, 0.5), "p95": percentile(taken, 0.95)}


RETURNING = [name for name in ACROSS if PEERS[name].is_celery] + ["dbos"]


@measure(
    "results",
    "Results: until get() returns",
    [
        Metric("get_p50", "delay().get(), half within", "ms", charted=True),
        Metric("get_p95", "95 % within", "ms"),
        Metric("group_s", "group of 200", "s", charted=True),
        Metric("chord_s", "chord of 100", "s", charted=True),
    ],
    peers=RETURNING,
    n=200,
    quick=5,
)
def results(peer: Peer, plan: Plan) -> Values:
    # RabbitMQ's rpc:// cannot do chords.
    chord = 0 if peer.name.startswith("rabbitmq") else min(100, plan.n)
    # DBOS polls for results each second, Kombu's sqla twice: a few calls tell that.
    calls = min(plan.n, 20) if peer.name.startswith(("sqla", "dbos")) else plan.n
    with peer.visit() as site:
        site.start_warm_worker()
        return site.do("results", n=calls, group=min(200, plan.n), chord=chord)


@measure(
    "idle",
    "Idle: a worker with nothing to do",
    [
        Metric("commands", "queries, transactions or commands", "1/s", charted=True),
        Metric("worker_cpu", "worker", "% of a core", charted=True),
        Metric("server_cpu", "server", "% of a core"),
    ],
    peers=ACROSS,
    n=30,
    quick=3,
)
def idle(peer: Peer, plan: Plan) -> Values:
    """`n` are seconds here."""
    with peer.visit() as site:
        site.start_warm_worker()
        # Who has just had something to do looks for more a while.
        time.sleep(15)
        asked, before = site.commands(), site.snapshot()
        time.sleep(plan.n)
        after, asked_then = site.snapshot(), site.commands()
    seconds = after.moment - before.moment
    values = {"worker_cpu": (after.main + after.children - before.main - before.children) / seconds * 100}
    if before.server is not None and after.server is not None:
        values["server_cpu"] = (after.server - before.server) / seconds * 100
    if asked is not None and asked_then is not None:
        values["commands"] = (asked_then - asked) / seconds
    return values
