"""Arguments known only at run time: references to results, and conditions over them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import ValueMissingError
from .codec import storable

__all__ = ["RUN", "Condition", "Ref", "references", "resolve"]

#: The step name that stands for the run itself: its id, state, reason, error, failed step and result.
RUN = "$run"

_TESTS: dict[str, Callable[..., Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda item, container: item in container,
    "not": operator.not_,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "is": bool,
}


@storable
@dataclass(frozen=True, slots=True)
class Ref:
    """The result of a step, or what is found in it at a path of keys and indexes."""

    step: str
    path: tuple[str | int, ...] = ()


@storable
@dataclass(frozen=True, slots=True)
class Condition:
    """A test of values: ``Condition(">", (Ref("order", ("total",)), 100))``."""

    test: str
    values: tuple[Any, ...]


def references(value: Any) -> Iterator[Ref]:
    """Every reference in a value, at any depth."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, Condition):
        yield from references(value.values)
    elif isinstance(value, dict):
        yield from references(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item)


def resolve(value: Any, result: Callable[[str], Any]) -> Any:
    """The value with its references looked up. Raises ValueMissingError, TypeError for a test that makes no sense."""
    if isinstance(value, Ref):
        return _follow(value, result(value.step))
    if isinstance(value, Condition):
        return _TESTS[value.test](*(resolve(item, result) for item in value.values))
    if isinstance(value, dict):
        return {key: resolve(item, result) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, result) for item in value]
    return value


def _follow(ref: Ref, found: Any) -> Any:
    # What a skipped step would have said is unknown at any depth.
    for key in ref.path if found is not None else ():
        try:
            found = found[key]
        except (LookupError, TypeError) as error:
            raise ValueMissingError(f"the result of step {ref.step!r} has no {key!r}: {type(error).__name__}") from None
    return found
