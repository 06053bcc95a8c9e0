"""What a builder's calls return: stands for the result of a step wherever an argument is wanted."""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain
from typing import Any, NoReturn

from ..engine.values import Condition, Ref

__all__ = ["StepRef", "Test", "plain"]


class Test:
    """A condition for `when=`; combine by ``&``, ``|`` and ``~``."""

    __test__ = False  # pytest takes the name for its own.

    def __init__(self, test: str, *values: Any) -> None:
        self.condition = Condition(test, tuple(plain(value) for value in values))

    def __and__(self, other: Any) -> Test:
        return Test("and", self, other)

    def __or__(self, other: Any) -> Test:
        return Test("or", self, other)

    def __invert__(self) -> Test:
        return Test("not", self)

    def __bool__(self) -> bool:
        raise TypeError("its value is known when the workflow runs: pass it as when=, combine by & and |")


class StepRef:
    """The result of a step, or a part of it: ``ref["key"]``, ``ref[0]``. Comparisons make conditions."""

    __hash__ = object.__hash__

    def __init__(self, name: str, path: tuple[str | int, ...] = ()) -> None:
        self.name = name
        self.path = path

    def __repr__(self) -> str:
        return f"<result of {self.name}{''.join(f'[{key!r}]' for key in self.path)}>"

    def __str__(self) -> str:
        raise TypeError(f"{self!r} is known when the workflow runs: pass it to a step, which can make a text of it")

    def __format__(self, spec: str) -> str:
        return str(self)

    def __iter__(self) -> NoReturn:
        # With __getitem__ alone it would be an endless sequence.
        raise TypeError(f"{self!r} is known when the workflow runs: w.map() runs a task for each item of it")

    def __deepcopy__(self, memo: Any) -> StepRef:
        return self

    def __getitem__(self, key: str | int) -> StepRef:
        return StepRef(self.name, (*self.path, key))

    def __eq__(self, other: object) -> Test:  # type: ignore[override]
        return Test("==", self, other)

    def __ne__(self, other: object) -> Test:  # type: ignore[override]
        return Test("!=", self, other)

    def __lt__(self, other: Any) -> Test:
        return Test("<", self, other)

    def __le__(self, other: Any) -> Test:
        return Test("<=", self, other)

    def __gt__(self, other: Any) -> Test:
        return Test(">", self, other)

    def __ge__(self, other: Any) -> Test:
        return Test(">=", self, other)

    def isin(self, values: Any) -> Test:
        """Whether it is one of these values."""
        return Test("in", self, values)

    def __and__(self, other: Any) -> Test:
        return Test("and", self, other)

    def __or__(self, other: Any) -> Test:
        return Test("or", self, other)

    def __invert__(self) -> Test:
        return Test("not", self)

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is known when the workflow runs: pass it as an argument, or as when=")


def plain(value: Any) -> Any:
    """The value as a definition holds it: lists for everything that is a row of things, dicts, `Ref` for references."""
    if isinstance(value, StepRef):
        return Ref(value.name, value.path)
    if isinstance(value, Test):
        return value.condition
    if isinstance(value, dict):
        return {key: plain(item) for key, item in dict.items(value)}
    if isinstance(value, list | tuple | set | frozenset | range | Generator | chain):
        return [plain(item) for item in value]
    # Celery's lists that are made when first read.
    if type(value).__name__ == "_regen":
        return [plain(item) for item in value]
    return value
