"""What a store of runs needs around it in tests: a serializer, and messages that are kept in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from celery_workflow.engine.decision import Decision, Send
from celery_workflow.engine.definition import Definition
from celery_workflow.engine.events import Event, StepFailed, StepStarted, StepSucceeded
from celery_workflow.engine.memory import Message
from celery_workflow.engine.policies import Error
from celery_workflow.engine.records import RunRecord

__all__ = ["JSONText", "Recorder", "outcome_of"]


class JSONText:
    """A `Serializer` of what JSON knows."""

    def dumps(self, value: Any) -> str:
        return json.dumps(value)

    def loads(self, text: str) -> Any:
        return json.loads(text)


class Recorder:
    """`Effects` that keep messages as the store in memory does. A transaction that is repeated does no harm here."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.ends: list[tuple[str, Any]] = []
        #: Tasks that cannot be sent.
        self.refused: set[str] = set()
        #: The names of what was called, in order.
        self.calls: list[str] = []

    def settle(self, tx: Any) -> bool:
        self.calls.append("settle")
        return True

    def decided(self, tx: Any, decision: Decision) -> None:
        self.calls.append("decided")

    def send(self, tx: Any, run: RunRecord, definition: Definition, sends: Sequence[Send]) -> Sequence[tuple[Send, Error]]:
        self.calls.append("send")
        self.messages.update({send.task_id: Message(run.id, send) for send in sends if send.task not in self.refused})
        return [(send, Error(type="Refused", permanent=True)) for send in sends if send.task in self.refused]

    def take_back(self, tx: Any, run: RunRecord, task_ids: Collection[str], *, terminate: bool) -> Collection[str]:
        self.calls.append("take_back")
        found = [self.messages[task_id] for task_id in task_ids if task_id in self.messages]
        for message in found:
            message.stop = message.stop or (message.leased and terminate)
        return [self.messages.pop(message.send.task_id).send.task_id for message in found if not message.leased]

    def ended(self, tx: Any, run: RunRecord, definition: Definition, result: Any) -> None:
        self.calls.append("ended")
        self.ends.append((run.id, result))

    def message(self, name: str, index: int | None = None, run_id: str | None = None) -> Message:
        """The message of a step or item that was sent."""
        found = [m for m in self.messages.values() if (m.send.name, m.send.index) == (name, index)]
        return next(m for m in found if run_id in (None, m.run_id))

    def settling(self, message: Message) -> Settling:
        """These effects for the outcome of this message, which goes in the same transaction."""
        return Settling(self, message)


class Settling(Recorder):
    """Ends a message, unless another has taken its place."""

    def __init__(self, all_effects: Recorder, message: Message) -> None:
        self.messages = all_effects.messages
        self.ends = all_effects.ends
        self.refused = all_effects.refused
        self.calls = all_effects.calls
        self._message = message

    def settle(self, tx: Any) -> bool:
        self.calls.append("settle")
        if self.messages.get(self._message.send.task_id) is not self._message:
            return False
        del self.messages[self._message.send.task_id]
        return True


def outcome_of(message: Message, at: int, result: Any = None, *, error: str | None = None, started: bool = False) -> Event:
    """What a worker has to say of the message's task."""
    send = message.send
    which: dict[str, Any] = {"at": at, "name": send.name, "index": send.index, "epoch": send.epoch, "attempt": send.attempt}
    if started:
        return StepStarted(**which)
    return StepSucceeded(**which, result=result) if error is None else StepFailed(**which, error=Error(type=error))
