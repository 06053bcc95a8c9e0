"""Every combination of settings that say what follows an end that is none."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

__all__ = ["COMBINATIONS", "Settings"]


@dataclass(frozen=True)
class Settings:
    """What a task says of its ack, its failures and the loss of its process."""

    late: bool
    acks_on_failure: bool
    acks_on_timeout: bool
    reject: bool
    retry: bool

    @property
    def name(self) -> str:
        """The task's name."""
        return ", ".join(name if value else f"not {name}" for name, value in self.__dict__.items())


COMBINATIONS = [Settings(*values) for values in itertools.product([True, False], repeat=5)]
