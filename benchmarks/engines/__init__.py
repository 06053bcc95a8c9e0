"""The libraries compared, each behind the few verbs that the measures need.

An engine runs in a process of its own (`benchmarks.child`), never in the one that measures.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from ..setting import Setting

__all__ = ["Engine", "Message", "engine_of"]

#: A tag, and in how many seconds the message is due; None is now.
Message = tuple[float, float | None]


class Engine:
    """What a library does in our words. What it cannot do raises NotImplementedError."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def prepare(self) -> None:
        """Make the tables."""

    def send(self, messages: Iterable[Message]) -> None:
        """One by one, each stored before the next is asked for: the iterable may wait and tell the time."""
        raise NotImplementedError

    def send_many(self, n: int, mode: str) -> None:
        """As `mode` says: "group" is Celery's, "bulk" is what a library has for many at once."""
        raise NotImplementedError

    def fill(self, n: int, countdown: float | None) -> None:
        """Have at least `n` messages waiting, the quickest way there is. Nobody measures this."""
        raise NotImplementedError

    def call(self) -> None:
        """Run a task and wait for its result."""
        raise NotImplementedError

    def call_group(self, n: int) -> None:
        raise NotImplementedError

    def call_chord(self, n: int) -> None:
        raise NotImplementedError

    def run_workflows(self, n: int, steps: int) -> None:
        """So many workflows of so many steps, one after the other in each, all at once; and wait for all."""
        raise NotImplementedError

    def run_fan(self, n: int) -> None:
        """A workflow: so many steps beside each other, and one that joins them."""
        raise NotImplementedError

    def work(self, pool: str, concurrency: int, first: int) -> None:
        """Be a worker, until SIGTERM. `first` is for the broker that lives in the worker: send so many before."""
        raise NotImplementedError

    def watch(self, port: int) -> None:
        """Be Flower, until SIGTERM."""
        raise NotImplementedError

    def close(self) -> None:
        pass


def engine_of(setting: Setting) -> Engine:
    module = importlib.import_module(f"{__name__}.with_{setting.engine}")
    engine: Engine = module.ENGINE(setting)
    return engine
