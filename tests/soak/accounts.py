"""What became of each task, and whether the faults explain it."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .journal import Entry

__all__ = ["EVERYONE", "Account", "Fault", "account"]

#: The target of what hits the database.
EVERYONE = "*"
STOP = "stop worker"
#: A late ack is written so soon, in seconds, on a machine that is busy: a worker hit after that has acked.
ACKED_WITHIN = 2.0


@dataclass(frozen=True)
class Fault:
    """Something done to a worker, to one of its processes, or to everyone, and how long, in seconds, it may matter."""

    kind: str
    target: str
    at: float
    until: float = math.inf
    #: The one process that was hit, 0 for all of the worker.
    pid: int = 0

    def hits(self, entry: Entry) -> bool:
        """Whether it is about whoever wrote this entry."""
        return self.target in (EVERYONE, entry.worker) and self.pid in (0, entry.pid)


@dataclass(frozen=True)
class Account:
    """Task numbers, and pairs of starts of one message: all lists but `explained` have to be empty."""

    sent: int
    refused: int
    starts: int
    #: Returned to its producer and never ended.
    lost: list[int]
    #: Stored more than once.
    doubled: list[int]
    #: Started twice under one lease.
    shared: list[str]
    #: Started again though nothing had happened to its holder.
    unexplained: list[tuple[Entry, Entry]]
    #: What explains a repeat, with how many it explains.
    explained: Counter[str]


def account(entries: Sequence[Entry], faults: Sequence[Fault], *, stalls_all: float = 0) -> Account:
    """The account of a soak that is over.

    With `stalls_all` nobody can write for so many seconds after a worker was stopped, if it was just writing.
    """
    by = defaultdict(list)
    for entry in entries:
        by[entry.what].append(entry)
    ended, broken = ({entry.number for entry in by[what]} for what in ("end", "broken"))
    explained: Counter[str] = Counter()
    unexplained = []
    for earlier, later in _repeats(by["start"]):
        ends = [e.at for e in (*by["end"], *by["retry"]) if e.lease == earlier.lease]
        ended_at = min(ends, default=math.inf)
        stalls = [f.at + stalls_all for f in faults if f.kind == STOP and f.at <= ended_at <= f.at + stalls_all]
        kind = explanation(earlier, later, max([ended_at, *stalls]), faults)
        if kind is None:
            unexplained.append((earlier, later))
        else:
            explained[kind] += 1
    return Account(
        sent=len(by["sent"]),
        refused=len(by["refused"]),
        starts=len(by["start"]),
        lost=sorted({entry.number for entry in by["sent"]} - ended - broken),
        doubled=_doubled(by["start"]),
        shared=[lease for lease, count in Counter(entry.lease for entry in by["start"]).items() if count > 1],
        unexplained=unexplained,
        explained=explained,
    )


def explanation(earlier: Entry, later: Entry, could_ack_at: float, faults: Iterable[Fault]) -> str | None:
    """The kind of fault that made the message of `earlier` start again as `later`; None if there was none.

    It began before the later start, and mattered still when the earlier one had begun; one that began when the ack must
    have been written explains nothing.
    """
    # What hit the holder itself comes first.
    for fault in sorted(faults, key=lambda fault: fault.target == EVERYONE):
        in_time = fault.at <= min(later.at, could_ack_at + ACKED_WITHIN) and fault.until >= earlier.at
        if in_time and fault.hits(earlier):
            return fault.kind
    return None


def _repeats(starts: Iterable[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Each start of a message with the one after it."""
    of_message: dict[str, list[Entry]] = defaultdict(list)
    for entry in starts:
        of_message[entry.lease.partition(":")[0]].append(entry)
    for each in of_message.values():
        each.sort(key=lambda entry: int(entry.lease.partition(":")[2]))
        yield from itertools.pairwise(each)


def _doubled(starts: Iterable[Entry]) -> list[int]:
    """Numbers with more than one message for the same try."""
    messages: dict[tuple[int, int], set[str]] = defaultdict(set)
    for entry in starts:
        messages[entry.number, entry.retries].add(entry.lease.partition(":")[0])
    return sorted({number for (number, _), ids in messages.items() if len(ids) > 1})
