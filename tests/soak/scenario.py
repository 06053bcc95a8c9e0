"""What a soak consists of: how much work, who does it, and what goes wrong meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LARGE", "LEASE", "SMALL", "Scenario"]

#: Seconds.
LEASE = 3.0
#: They come in rounds, each in a random order.
FAULTS = ("kill worker", "kill parent", "kill child", "kill producer", "stop worker", "cut")


@dataclass(frozen=True)
class Scenario:
    """Durations are in seconds."""

    tasks: int
    #: The arguments of each worker.
    workers: tuple[tuple[str, ...], ...]
    producers: int
    #: The pause of a producer between two tasks.
    pace: float
    #: Between two faults.
    between: tuple[float, float]
    #: After so many faults there are no more: on a busy machine, starting processes again would be all that is done.
    most_faults: int = 1_000_000
    #: A stopped worker goes on after so long.
    stopped_for: float = LEASE + 2
    faults: tuple[str, ...] = FAULTS
    #: At which shares of the tasks the database is restarted: by a shutdown and by a crash, in turn.
    restarts: tuple[float, ...] = ()
    #: How long all may take.
    patience: float = 240.0
    seed: int = 1


SMALL = Scenario(
    tasks=600,
    workers=(("-Pprefork", "-c2"), ("-Pthreads", "-c2")),
    producers=2,
    pace=0.04,
    between=(1.0, 2.0),
    most_faults=9,
    stopped_for=LEASE + 1,
)
LARGE = Scenario(
    tasks=20_000,
    workers=(("-Pprefork", "-c3"), ("-Pthreads", "-c4"), ("-Psolo", "-c1"), ("-P", "gevent", "-c8")),
    producers=4,
    pace=0.06,
    between=(2.0, 6.0),
    patience=3000.0,
)
