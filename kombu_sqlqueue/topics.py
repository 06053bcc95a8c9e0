"""What processes wake each other about: names only, they carry no data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from .routing import NAME_BYTES

__all__ = [
    "LONGEST_NAME",
    "RELAY",
    "RESULTS",
    "ROUTES",
    "later_topic",
    "queue_topic",
    "ready_in",
    "result_topic",
    "task_in",
    "tells_of_later",
    "topic_name",
    "waited_as",
]

#: Who waits for any result waits for this; the announcement names the task.
RESULTS = "results"
#: A relay has stopped: another may go on.
RELAY = "relay"
#: A topic exchange leads to one more queue.
ROUTES = "routes"
_QUEUE = "queue:"
_LATER = "later:"
#: Bytes of the longest name of a queue that fits into a topic.
LONGEST_NAME = NAME_BYTES - len(_QUEUE)
_RESULT = "result:"


def topic_name(queue: str) -> str:
    """What stands for `queue` in topics: the longest names leave no room for more in a row, so a digest does."""
    short = len(queue.encode()) <= LONGEST_NAME
    return queue if short else hashlib.sha256(queue.encode()).hexdigest()


def queue_topic(queue: str) -> str:
    """Something in `queue` changed that an idle consumer wants to know."""
    return _QUEUE + topic_name(queue)


def later_topic(queue: str) -> str:
    """The queue got a message that is due later."""
    return _LATER + topic_name(queue)


def ready_in(topics: Iterable[str]) -> set[str]:
    """What stands there for the queues in which something is ready."""
    return {topic.removeprefix(_QUEUE) for topic in topics if topic.startswith(_QUEUE)}


def tells_of_later(topics: Iterable[str]) -> bool:
    """Whether a message came that is due later."""
    return any(topic.startswith(_LATER) for topic in topics)


def result_topic(task_id: str) -> str:
    """The task has ended."""
    return _RESULT + task_id


def task_in(topic: str) -> str:
    """The task that a `result_topic` is about."""
    return topic.removeprefix(_RESULT)


def waited_as(topic: str) -> str:
    """The topic under which those wait who want to hear `topic`."""
    if topic.startswith(_LATER):
        return _QUEUE + topic.removeprefix(_LATER)
    return RESULTS if topic.startswith(_RESULT) else topic
