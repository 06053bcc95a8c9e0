"""Workflows: several tasks that need each other."""

from __future__ import annotations

from ..figures import Values
from ..peers import Peer
from .kinds import Metric, Plan, measure

__all__: list[str] = []

WIDE = 100


@measure(
    "workflows",
    "Workflows: ours are durable, Celery's canvas is not, DBOS runs steps in the process that asks",
    [
        Metric("steps", "steps of many 3-step workflows at once", "1/s", more=True, charted=True),
        Metric("chain_ms", "10 steps one after the other", "ms", charted=True),
        Metric("fan_s", "100 steps and one that joins them", "s", charted=True),
    ],
    peers=["redis", "postgresql", "mariadb", "sqlite", "dbos"],
    n=200,
    quick=5,
)
def workflows(peer: Peer, plan: Plan) -> Values:
    with peer.visit() as site:
        site.start_warm_worker()
        return site.do("workflows", n=plan.n, chains=min(20, plan.n), fan=min(WIDE, 10 * plan.n))
