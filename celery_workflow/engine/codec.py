"""Values of this package as JSON and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, cast

__all__ = ["TAG", "from_json", "storable", "to_json"]

#: Says which class an object is; a user's own dict with such a key is written as pairs.
TAG = "$"

T = TypeVar("T")
_CLASSES: dict[str, type[Any]] = {}
_ENUMS: dict[str, type[StrEnum]] = {}


def storable(cls: type[T]) -> type[T]:
    """Class decorator: values of this frozen dataclass, or of this enum, have a JSON form."""
    if issubclass(cls, StrEnum):
        _ENUMS[cls.__name__] = cls
    else:
        _CLASSES[cls.__name__] = cls
    return cls


def to_json(value: Any) -> Any:
    """Dicts, lists and scalars that `from_json` makes the same value of. Tuples of users become lists.

    Leaves that are neither (dates, decimals) stay as they are: the serializer's matter.
    """
    if _CLASSES.get(type(value).__name__) is type(value):
        return {TAG: type(value).__name__} | {
            field.name: to_json(given)
            for field in dataclasses.fields(value)
            if not _is_default(field, given := getattr(value, field.name))
        }
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, dict):
        return _dict_to_json(value)
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def from_json(data: Any) -> Any:
    """What `to_json` was given. Raises KeyError for a class this release does not know."""
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    tag = data.get(TAG)
    if tag is None:
        return {key: from_json(item) for key, item in data.items()}
    if tag == "dict":
        return {key: from_json(item) for key, item in data["pairs"]}
    cls = _CLASSES[tag]
    given = {key: from_json(item) for key, item in data.items() if key != TAG}
    for name, convert in _converters(cast("Hashable", cls)).items():
        if given.get(name) is not None:
            given[name] = convert(given[name])
    return cls(**given)


def _dict_to_json(value: dict[Any, Any]) -> Any:
    if TAG in value:
        return {TAG: "dict", "pairs": [[key, to_json(item)] for key, item in value.items()]}
    return {key: to_json(item) for key, item in value.items()}


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return field.default is not dataclasses.MISSING and type(field.default) is type(value) and bool(field.default == value)


@cache
def _converters(cls: Hashable) -> dict[str, Callable[[Any], Any]]:
    """How the fields of a class get their own types back, where JSON has lost them."""
    found: dict[str, Callable[[Any], Any]] = {}
    for field in dataclasses.fields(cast("type[Any]", cls)):
        annotation = str(field.type)
        if annotation.startswith("tuple"):
            found[field.name] = tuple
        elif enum := _ENUMS.get(annotation.partition(" ")[0]):
            found[field.name] = enum
    return found
