"""Queue lengths for Flower, whose own code knows a fixed list of brokers and offers no way to add one."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..messages import QueueCounts
from ..options import Options
from ..process import process_for

__all__ = ["FlowerBroker", "install"]

logger = logging.getLogger(__name__)


class FlowerBroker:
    """What Flower asks of a broker: how full these queues are."""

    def __init__(self, url: str, *, broker_options: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self._process = process_for(Options.parse(url, broker_options or {}).database)

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """One row for each of the queues, in the given order, with the columns of Flower's broker page."""
        # In another thread, as Flower's own serves all of its pages.
        return await asyncio.get_running_loop().run_in_executor(None, self._look, list(names))

    def _look(self, names: list[str]) -> list[dict[str, Any]]:
        found = {counts.queue: counts for counts in self._process.messages.counts(names)}
        return [self._row(found.get(name, QueueCounts(name))) for name in names]

    def _row(self, counts: QueueCounts) -> dict[str, Any]:
        held = counts.leased + counts.started
        return {
            "name": counts.queue,
            "messages": counts.ready + counts.delayed + held,
            "messages_ready": counts.ready,
            "messages_unacknowledged": held,
            "messages_delayed": counts.delayed,
            "messages_dead": counts.dead,
            "consumers": self._process.routing.consumers(counts.queue),
            "idle_since": None,  # nobody writes it down: that would cost every claim
        }


def install() -> None:
    """Let Flower, if it is loaded, ask us about our queues. A Flower that is built otherwise is left alone."""
    broker = getattr(sys.modules.get("flower.utils.broker"), "Broker", None)
    make = vars(broker).get("__new__") if isinstance(broker, type) else None
    if not isinstance(make, staticmethod):
        logger.debug("no Flower here, or none that we know: %r", broker)
    elif make.__func__.__module__ != __name__:
        broker.__new__ = _unless_ours(make.__func__)  # type: ignore[method-assign]


def _unless_ours(make: Any) -> Any:
    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        if args and str(args[0]).startswith(("sqlqueue+", "sqlqueue-")):
            return FlowerBroker(*args, **kwargs)
        return make(cls, *args, **kwargs)

    return new
