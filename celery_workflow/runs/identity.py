"""Which attempt of which step a task is: a header of its message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..engine.decision import Send
from ..engine.definition import Definition, Task
from ..engine.records import Key

__all__ = ["HEADER", "OWNER", "StepIdentity", "identity_of"]

#: The header, an attribute of Celery's requests.
HEADER = "workflow_step"
#: The header by which the broker leaves it to us to settle the message (`kombu_sqlqueue.envelope`).
OWNER = "sqlqueue_owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIdentity:
    """One attempt of a step or item of a run. `index` is that of an item of a map."""

    run: str
    workflow: str
    step: str
    index: int | None
    epoch: int
    attempt: int
    max_attempts: int
    #: Its result says which steps take its place.
    expands: bool

    @property
    def key(self) -> Key:
        return Key(self.step, self.index)

    @property
    def which(self) -> dict[str, Any]:
        """The fields of the events that are about this attempt."""
        return {"name": self.step, "index": self.index, "epoch": self.epoch, "attempt": self.attempt}

    def headers(self) -> dict[str, Any]:
        return {HEADER: asdict(self), OWNER: self.run}

    @classmethod
    def of(cls, run_id: str, definition: Definition, send: Send) -> StepIdentity:
        step = definition.by_name[send.name]
        return cls(
            run=run_id,
            workflow=definition.name,
            step=send.name,
            index=send.index,
            epoch=send.epoch,
            attempt=send.attempt,
            max_attempts=step.retry.max_attempts,
            expands=isinstance(step.action, Task) and step.action.expands,
        )


_NAMES = frozenset(field.name for field in fields(StepIdentity))


def identity_of(request: Any) -> StepIdentity | None:
    """The step that a request is about; None for any other task, and for what a step has sent by itself."""
    header = getattr(request, HEADER, None)
    # Anybody may send a header of this name; a later release may add to ours.
    if not isinstance(header, Mapping) or not header.keys() >= _NAMES:
        return None
    return StepIdentity(**{name: header[name] for name in _NAMES})
