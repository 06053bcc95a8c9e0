"""What processes wake each other about: names only, they carry no data."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["RESULTS", "later_topic", "queue_topic", "queues_in", "result_topic", "tells_of_later", "waited_as"]

#: Who waits for any result waits for this; the announcement names the task.
RESULTS = "results"
_QUEUE = "queue:"
_LATER = "later:"
_RESULT = "result:"


def queue_topic(queue: str) -> str:
    """Something in `queue` changed that an idle consumer wants to know."""
    return _QUEUE + queue


def later_topic(queue: str) -> str:
    """The queue got a message that is due later."""
    return _LATER + queue


def queues_in(topics: Iterable[str]) -> set[str]:
    """The queues that topics are about."""
    return {topic.partition(":")[2] for topic in topics}


def tells_of_later(topics: Iterable[str]) -> bool:
    """Whether a message came that is due later."""
    return any(topic.startswith(_LATER) for topic in topics)


def result_topic(task_id: str) -> str:
    """The task has ended."""
    return _RESULT + task_id


def waited_as(topic: str) -> str:
    """The topic under which those wait who want to hear `topic`."""
    if topic.startswith(_LATER):
        return _QUEUE + topic.removeprefix(_LATER)
    return RESULTS if topic.startswith(_RESULT) else topic
