"""What a measure is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..figures import Values
from ..peers import PEERS, Peer

__all__ = ["ALL", "CELERY", "REGISTERED", "Measure", "Metric", "Plan", "measure"]


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    unit: str
    #: More is better: rates. Otherwise less is.
    more: bool = False
    #: Shown in the chart too.
    charted: bool = False


@dataclass(frozen=True)
class Plan:
    """How much of it."""

    n: int
    #: Seconds that one wait for tasks may take.
    window: float


Run = Callable[[Peer, Plan], Values]


@dataclass(frozen=True)
class Measure:
    name: str
    title: str
    metrics: tuple[Metric, ...]
    peers: tuple[str, ...]
    run: Run
    #: How many messages it is about, and how many when only the harness is tried.
    n: int
    quick: int
    window: float = 30

    def plan(self, n: int | None, *, quick: bool) -> Plan:
        return Plan(n or (self.quick if quick else self.n), min(self.window, 10) if quick else self.window)


#: Filled by the modules of this package.
REGISTERED: dict[str, Measure] = {}

ALL = tuple(PEERS)
CELERY = tuple(name for name, peer in PEERS.items() if peer.is_celery)


def measure(
    name: str,
    title: str,
    metrics: Sequence[Metric],
    *,
    peers: Sequence[str],
    n: int,
    quick: int,
    window: float = 30,
) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        REGISTERED[name] = Measure(name, title, tuple(metrics), tuple(peers), run, n, quick, window)
        return run

    return register
