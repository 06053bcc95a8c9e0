"""What a publisher notices."""

from __future__ import annotations

from ..figures import Values
from ..peers import Peer
from .kinds import ALL, Metric, Plan, measure

__all__: list[str] = []


@measure(
    "publish",
    "Publish: from one process",
    [
        Metric("one_rate", "one by one", "messages/s", more=True, charted=True),
        Metric("one_us", "publisher", "µs CPU/message"),
        Metric("group_rate", "group()", "messages/s", more=True),
        Metric("bulk_rate", "bulk", "messages/s", more=True, charted=True),
        Metric("bulk_us", "publisher, bulk", "µs CPU/message"),
    ],
    peers=ALL,
    n=5000,
    quick=100,
)
def publish(peer: Peer, plan: Plan) -> Values:
    values: Values = {}
    for mode in ("one", "group", "bulk"):
        with peer.visit() as site:
            told = site.do("publish", n=plan.n, mode=mode)
        values |= {name: value for name, value in told.items() if name.startswith(mode)}
    return values
