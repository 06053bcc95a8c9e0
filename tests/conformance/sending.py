"""Messages to send, and what came of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from kombu_sqlqueue.clock import FakeClock, microseconds
from kombu_sqlqueue.messages import DeadMessage, Delivery, NewMessage
from kombu_sqlqueue.sql.messages import SQLMessageStore

__all__ = ["SECOND", "after", "claim", "claim_one", "message", "names", "send"]

SECOND = timedelta(seconds=1)


def message(name: str = "a", *, queue: str = "q", **given: Any) -> NewMessage:
    """A message with its name for a body."""
    return NewMessage(queue=queue, body=name.encode(), envelope="{}", **given)


def send(store: SQLMessageStore, *names: str, **given: Any) -> None:
    assert store.publish([message(name, **given) for name in names])


def claim(store: SQLMessageStore, lessee: int, *queues: str, limit: int = 100) -> list[Delivery]:
    return store.claim(queues or ["q"], limit=limit, lessee=lessee)


def claim_one(store: SQLMessageStore, lessee: int, *queues: str) -> Delivery:
    (delivery,) = claim(store, lessee, *queues, limit=1)
    return delivery


def names(found: Iterable[Delivery | DeadMessage]) -> list[str]:
    return [each.body.decode() for each in found]


def after(clock: FakeClock, duration: timedelta) -> int:
    """The instant that comes after `duration`."""
    return clock.now() + microseconds(duration)
