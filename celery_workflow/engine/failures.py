"""Exceptions as the errors of a definition's policies."""

from __future__ import annotations

from ..errors import Permanent
from .policies import Error

__all__ = ["error_of"]


def error_of(exception: BaseException, traceback: str = "") -> Error:
    """What is kept of an exception; of a `Permanent`, what it wraps."""
    wrapped = exception.error if isinstance(exception, Permanent) else exception
    if not isinstance(wrapped, BaseException):
        wrapped = exception
    return Error(
        type=type(wrapped).__name__,
        message=str(wrapped),
        traceback=traceback,
        kinds=tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(wrapped).__mro__[:-1]),
        permanent=isinstance(exception, Permanent),
    )
