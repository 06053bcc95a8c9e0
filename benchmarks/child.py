"""What a process of a visit does: `python -m benchmarks.child ACTION JSON`. Its last line is JSON too."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import repeat
from pathlib import Path
from typing import Any

from .engines import Engine, Message, engine_of
from .figures import Values, percentile
from .setting import Setting

__all__ = ["main"]

#: The tag of messages that nobody measures.
UNMEASURED = -1.0


def prepare(engine: Engine) -> Values:
    engine.prepare()
    return {}


def warm(engine: Engine, n: int) -> Values:
    engine.send(repeat((UNMEASURED, None), n))
    return {}


def fill(engine: Engine, n: int, countdown: float | None = None) -> Values:
    engine.fill(n, countdown)
    return {}


def publish(engine: Engine, n: int, mode: str, gate: str | None = None) -> Values:
    """`n` messages in a way that the engine may not know: then there is nothing to tell."""
    warm(engine, 5)
    if gate:
        _wait_at(Path(gate))
    began, spent = time.monotonic(), time.process_time()
    try:
        if mode == "one":
            engine.send(repeat((0.0, None), n))
        else:
            engine.send_many(n, mode)
    except NotImplementedError:
        return {}
    ended = time.monotonic()
    return {
        "began": began,
        "ended": ended,
        f"{mode}_rate": n / (ended - began),
        f"{mode}_us": (time.process_time() - spent) / n * 1e6,
    }


def _wait_at(gate: Path) -> None:
    """Several processes begin together: each says that it is there, and waits until the gate is open."""
    arrived = gate.parent / f"{gate.name}.{random.getrandbits(64)}"
    arrived.touch()
    while not gate.exists():
        time.sleep(0.005)


def latency(engine: Engine, n: int, gap: float) -> Values:
    """One at a time, each tagged with when it was sent."""
    chance = random.Random(7)

    def messages() -> Iterator[Message]:
        for _ in range(n):
            time.sleep(gap * chance.uniform(0.5, 1.5))
            yield time.monotonic(), None

    engine.send(messages())
    return {}


def delays(engine: Engine, n: int, low: float, high: float) -> Values:
    """Each tagged with when it is due."""
    chance = random.Random(7)

    def messages() -> Iterator[Message]:
        for _ in range(n):
            countdown = chance.uniform(low, high)
            yield time.time() + countdown, countdown

    engine.send(messages())
    return {}


def results(engine: Engine, n: int, group: int, chord: int) -> Values:
    """The last two are sizes; 0 leaves it out."""
    engine.call()
    calls = [_seconds(engine.call) * 1000 for _ in range(n)]
    values = {"get_p50": percentile(calls, 0.5), "get_p95": percentile(calls, 0.95)}
    for name, size, call in (("group_s", group, engine.call_group), ("chord_s", chord, engine.call_chord)):
        if size:
            with suppress(NotImplementedError):
                values[name] = _seconds(call, size)
    return values


def _seconds(call: Callable[..., None], *arguments: Any) -> float:
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


def workflows(engine: Engine, n: int, chains: int, fan: int) -> Values:
    """`n` workflows of 3 steps at once, so many of 10 steps one by one, and some of so many steps beside each other."""
    engine.run_workflows(1, 3)
    engine.run_fan(3)
    at_once = _seconds(engine.run_workflows, n, 3)
    chain = [_seconds(engine.run_workflows, 1, 10) * 1000 for _ in range(chains)]
    wide = [_seconds(engine.run_fan, fan) for _ in range(3)]
    return {"steps": 3 * n / at_once, "chain_ms": percentile(chain, 0.5), "fan_s": percentile(wide, 0.5)}


def work(engine: Engine, pool: str, concurrency: int, first: int) -> Values:
    engine.work(pool, concurrency, first)
    return {}


def watch(engine: Engine, port: int) -> Values:
    engine.watch(port)
    return {}


ACTIONS: dict[str, Callable[..., Values]] = {
    action.__name__: action for action in (prepare, warm, fill, publish, latency, delays, results, workflows, work, watch)
}


def main() -> None:
    action, given = sys.argv[1], json.loads(sys.argv[2])
    with closing(engine_of(Setting.of_this_process())) as engine:
        values = ACTIONS[action](engine, **given)
    print(json.dumps(values))


if __name__ == "__main__":
    main()
