"""What processes wake each other about: names only, they carry no data."""

from __future__ import annotations

import hashlib

from .routing import NAME_BYTES

__all__ = ["RESULTS", "queue_topic", "result_topic", "waited_as"]

#: Who waits for any result waits for this; the announcement names the task.
RESULTS = "results"
_QUEUE = "queue:"
_RESULT = "result:"


def queue_topic(queue: str) -> str:
    """Something in `queue` changed that an idle consumer wants to know.

    The longest names of queues leave no room for more in a row: a digest stands for them.
    """
    topic = _QUEUE + queue
    return topic if len(topic.encode()) <= NAME_BYTES else _QUEUE + hashlib.sha256(queue.encode()).hexdigest()


def result_topic(task_id: str) -> str:
    """The task has ended."""
    return _RESULT + task_id


def waited_as(topic: str) -> str:
    """The topic under which those wait who want to hear `topic`."""
    return RESULTS if topic.startswith(_RESULT) else topic
