"""The errors this package raises, and the two that a step may raise to say how it should go on."""

from __future__ import annotations

from datetime import timedelta

__all__ = [
    "LONGEST",
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


#: The longest time that anything waits, in seconds: 100 years.
LONGEST = 100 * 365 * 86400


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
    """Raised in a step: try it again after so many seconds, or a timedelta; no attempt is spent.

    Raises ValueError for a time that would never end.
    """

    def __init__(self, seconds: float | timedelta) -> None:
        super().__init__(seconds)
        self.seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if not self.seconds < LONGEST:
            raise ValueError(f"a snooze of {seconds} seconds would never end")


class Permanent(Exception):
    """Raised in a step: it failed, and no further attempt would help. Wraps the error or its text."""

    def __init__(self, error: BaseException | str) -> None:
        super().__init__(str(error))
        self.error = error
