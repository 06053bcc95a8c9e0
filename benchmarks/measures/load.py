"""Work that waits: how quickly it is taken, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

from ..figures import Values
from ..marks import Mark
from ..peers import Peer
from ..site import Site, Snapshot
from .kinds import ALL, CELERY, Metric, Plan, measure

__all__ = ["consumed"]

#: The first of the tasks are not counted: the worker is still starting.
UNCOUNTED = 0.05

COSTS = [
    Metric("rate", "rate", "tasks/s", more=True, charted=True),
    Metric("main_us", "worker's main process", "µs CPU/task", charted=True),
    Metric("children_us", "its children", "µs CPU/task"),
    Metric("server_us", "server", "µs CPU/task"),
    Metric("main_mb", "memory of the main process", "MB"),
]


@measure("consume", "Consume: tasks that do nothing, prefork pool of 2", COSTS, peers=ALL, n=5000, quick=100)
def consume(peer: Peer, plan: Plan) -> Values:
    return _consume(peer, plan, "prefork")


SOLO = [name for name in CELERY if not name.startswith("sqla")]


@measure("consume-solo", "Consume: tasks that do nothing, solo pool", COSTS, peers=SOLO, n=5000, quick=100)
def consume_solo(peer: Peer, plan: Plan) -> Values:
    return _consume(peer, plan, "solo")


@measure("consume-threads", "Consume: tasks that do nothing, two threads", COSTS, peers=SOLO, n=5000, quick=100)
def consume_threads(peer: Peer, plan: Plan) -> Values:
    return _consume(peer, plan, "threads")


def _consume(peer: Peer, plan: Plan, pool: str) -> Values:
    with peer.visit() as site:
        if peer.in_process:
            worker = site.start_worker(pool, first=plan.n)
        else:
            site.do("publish", n=plan.n, mode="one")
            worker = site.start_worker(pool)
        return {**consumed(site, plan.n, plan.window), "main_mb": worker.memory()}


def consumed(site: Site, n: int, window: float) -> Values:
    """The rate at which workers just started run the `n` tasks that wait, and the CPU each takes."""
    site.wait(max(1, int(n * UNCOUNTED)), 60)
    before = site.snapshot()
    site.wait(n, window)
    return _between(site, before, site.snapshot())


def _between(site: Site, before: Snapshot, after: Snapshot) -> Values:
    counted = site.marks()[before.done - 1 : after.done]
    tasks = len(counted) - 1
    if tasks < 1:
        return {}
    values = {
        "rate": _rate(counted),
        "main_us": (after.main - before.main) / tasks * 1e6,
        "children_us": (after.children - before.children) / tasks * 1e6,
    }
    if before.server is not None and after.server is not None:
        values["server_us"] = (after.server - before.server) / tasks * 1e6
    return values


def _rate(marks: Sequence[Mark]) -> float:
    return (len(marks) - 1) / (marks[-1].monotonic - marks[0].monotonic)


BACKLOG_PEERS = ["redis", "rabbitmq", "postgresql", "mariadb", "sqlite", "sqla-postgresql", "procrastinate", "pgqueuer"]
#: A small backlog, which the large one is compared with, and how many due tasks there are among a million delayed.
FEW = 1000
HOUR = 3600.0


@measure(
    "backlog",
    "Backlog: consume with few and with many messages waiting",
    [
        Metric("few_rate", f"{FEW:,} waiting", "tasks/s", more=True, charted=True),
        Metric("many_rate", "1,000,000 waiting", "tasks/s", more=True, charted=True),
        Metric("delayed_rate", "1,000,000 delayed besides", "tasks/s", more=True, charted=True),
    ],
    peers=BACKLOG_PEERS,
    n=1_000_000,
    quick=2000,
    window=15,
)
def backlog(peer: Peer, plan: Plan) -> Values:
    values: Values = {}
    few = min(FEW, plan.n // 10)
    # Who keeps delayed tasks in the worker's memory is not asked for a million of them.
    delayed = 0 if peer.holds_delayed else plan.n
    for name, waiting, later in (("few", few, 0), ("many", plan.n, 0), ("delayed", few, delayed)):
        if name == "delayed" and not later:
            continue
        with peer.visit() as site:
            if later:
                site.do("fill", n=later, countdown=HOUR)
            site.do("fill", n=waiting)
            site.settle()
            site.start_worker()
            # Of a million there are as many as the time allows.
            begun = min(waiting, few) // 20 or 1
            site.wait(begun, 60)
            before = site.snapshot()
            site.wait(waiting, plan.window)
            values[f"{name}_rate"] = _between(site, before, site.snapshot()).get("rate", 0.0)
    return values


@measure(
    "pinned",
    "Vacuum held back: consume while a transaction elsewhere stays open",
    [
        Metric("first_rate", "the first tenth", "tasks/s", more=True, charted=True),
        Metric("last_rate", "the last tenth", "tasks/s", more=True, charted=True),
    ],
    peers=["postgresql", "sqla-postgresql", "procrastinate", "pgqueuer"],
    n=200_000,
    quick=1000,
    window=300,
)
def pinned(peer: Peer, plan: Plan) -> Values:
    """All that a worker does meanwhile leaves dead rows behind. What the window is too short for is not counted."""
    with peer.visit() as site:
        site.do("fill", n=plan.n)
        site.settle()
        with site.pinned():
            site.start_worker()
            done = site.wait(plan.n, plan.window)
        marks = site.marks()
    tenth = done // 10
    # The worker starts during the first.
    return {"first_rate": _rate(marks[tenth // 2 : tenth + tenth // 2]), "last_rate": _rate(marks[done - tenth : done])}


@measure(
    "flower",
    "Flower: consume while it watches every task",
    [
        Metric("rate", "nobody watches", "tasks/s", more=True, charted=True),
        Metric("watched_rate", "Flower watches", "tasks/s", more=True, charted=True),
        Metric("kept", "of the rate", "%", more=True),
    ],
    peers=["redis", "rabbitmq", "postgresql", "mariadb", "sqlite"],
    n=5000,
    quick=100,
)
def flower(peer: Peer, plan: Plan) -> Values:
    rates = {}
    for watched in (False, True):
        with peer.visit(worker_send_task_events=watched) as site:
            site.do("publish", n=plan.n, mode="one")
            if watched:
                site.start_flower()
            site.start_worker()
            rates[watched] = consumed(site, plan.n, plan.window).get("rate", 0.0)
    return {"rate": rates[False], "watched_rate": rates[True], "kept": 100 * rates[True] / rates[False]}


@measure(
    "contention",
    "Contention: many publishers, many workers",
    [
        Metric("publish_rate", "16 publishers, a worker consuming", "messages/s", more=True, charted=True),
        Metric("silent_rate", "the same without LISTEN/NOTIFY", "messages/s", more=True),
        Metric("workers4_rate", "4 workers", "tasks/s", more=True, charted=True),
        Metric("workers16_rate", "16 workers", "tasks/s", more=True, charted=True),
    ],
    peers=["redis", "rabbitmq", "postgresql", "mariadb", "sqlite", "sqla-postgresql"],
    n=8000,
    quick=160,
)
def contention(peer: Peer, plan: Plan) -> Values:
    values = {"publish_rate": _publish_together(peer, plan)}
    if peer.name == "postgresql":
        values["silent_rate"] = _publish_together(peer, plan, broker_transport_options={"listen": False})
    for workers in (4, 16):
        with peer.visit() as site:
            for _ in range(workers):
                site.start_worker("solo", 1)
            # All are there before the first task is: else some would be late for it.
            site.wait_ready()
            site.do("fill", n=plan.n)
            done = site.wait(plan.n, plan.window)
            values[f"workers{workers}_rate"] = _rate(site.marks()[int(done * UNCOUNTED) : done])
    return values


PUBLISHERS = 16


def _publish_together(peer: Peer, plan: Plan, **conf: object) -> float:
    each = max(1, plan.n // PUBLISHERS)
    with peer.visit(**conf) as site:
        site.start_warm_worker("solo", 1)
        told = site.do_together(PUBLISHERS, "publish", n=each, mode="one")
    return each * PUBLISHERS / (max(one["ended"] for one in told) - min(one["began"] for one in told))
