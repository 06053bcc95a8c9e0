"""The errors this package raises, and the two that a step may raise to say how it should go on."""

from __future__ import annotations

__all__ = [
    "DefinitionError",
    "DuplicateRunError",
    "DuplicateScheduleError",
    "InvalidTransitionError",
    "NotInStepError",
    "Permanent",
    "RunFailedError",
    "RunNotFoundError",
    "ScheduleError",
    "ScheduleNotFoundError",
    "Snooze",
    "ValueMissingError",
    "WaitTimeoutError",
    "WorkflowError",
]


class WorkflowError(Exception):
    """Root of every error this package raises on purpose."""


class ScheduleError(WorkflowError, ValueError):
    """A schedule is wrong; the text names the field, its value and what it must be."""


class DuplicateScheduleError(ScheduleError):
    """A schedule of that name exists already."""


class ScheduleNotFoundError(WorkflowError, LookupError):
    """There is no schedule of that name."""


class DefinitionError(WorkflowError, ValueError):
    """A workflow is not well formed; the text names the step and the line that declares it."""


class ValueMissingError(WorkflowError, LookupError):
    """A reference points at something that the result of its step does not have."""


class InvalidTransitionError(WorkflowError):
    """A run or a step may not do this in the state it is in; the text names both."""


class RunFailedError(WorkflowError):
    """A run has no result: it failed, was cancelled or discarded, or is not over. The text says which, and why."""


class RunNotFoundError(WorkflowError, LookupError):
    """There is no such run."""


class DuplicateRunError(WorkflowError):
    """A run of that id exists already."""


class NotInStepError(WorkflowError):
    """Only the task of a step can ask this, while it runs."""


class WaitTimeoutError(WorkflowError, TimeoutError):
    """A run is not over yet, and the time to wait for it is."""


class Snooze(Exception):
    """Raised in a step: try it again after so many seconds; no attempt is spent."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Permanent(Exception):
    """Raised in a step: it failed, and no further attempt would help. Wraps the error or its text."""

    def __init__(self, error: BaseException | str) -> None:
        super().__init__(str(error))
        self.error = error
