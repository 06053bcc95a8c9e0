"""Celery's signatures as calls of a definition."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from celery.canvas import Signature

from ..engine.definition import Call
from ..engine.policies import MICRO, RetryPolicy
from ..errors import DefinitionError
from .refs import plain

__all__ = ["call_of", "micros_of", "policy_of", "step_name"]

#: Options that the workflow takes over: identities, and what comes next.
_OURS = frozenset(
    [
        "task_id",
        "id",
        "root_id",
        "parent_id",
        "group_id",
        "group_index",
        "chord",
        "chain",
        "link",
        "link_error",
        "countdown",
        "eta",
        "reply_to",
        "producer",
        "connection",
        "publisher",
        "add_to_parent",
        "shadow_name",
        "args",
        "kwargs",
        "app",
        "interval",
        "immutable",
    ]
)

#: What a retry policy may say.
RETRY_FIELDS = frozenset(field.name for field in fields(RetryPolicy))


def call_of(signature: Signature, *args: Any, options: dict[str, Any] | None = None) -> Call:
    """The task of a signature; `args` go before its own unless it is immutable, `options` win over its own."""
    merged = {**signature.options, **(options or {})}
    eta = merged.get("eta")
    return Call(
        task=signature.task,
        args=tuple(plain([*(() if signature.immutable else args), *signature.args])),
        kwargs=plain({**signature.kwargs}),
        options={key: plain(value) for key, value in merged.items() if key not in _OURS and value is not None},
        countdown=merged.get("countdown"),
        eta=None if eta is None else micros_of(eta),
    )


def step_name(task: str, taken: Iterable[str]) -> str:
    """The last part of the task's name, with a number if that is taken."""
    short, names = task.rpartition(".")[2], set(taken)
    name, number = short, 2
    while name in names:
        name, number = f"{short}-{number}", number + 1
    return name


def policy_of(retry: Any) -> RetryPolicy:
    """A retry policy from a number of attempts, a dict of its fields, or itself."""
    if isinstance(retry, RetryPolicy):
        return retry
    try:
        given = {"max_attempts": retry} if isinstance(retry, int) else dict(retry or {})
        given["no_retry_on"] = tuple(_error_name(kind) for kind in _listed(given.get("no_retry_on")))
        if unknown := given.keys() - RETRY_FIELDS:
            raise TypeError(f"{', '.join(sorted(map(str, unknown)))} is none of {', '.join(sorted(RETRY_FIELDS))}")
        return RetryPolicy(**given)
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"not a retry policy: {retry!r} ({error})") from None


def _listed(kinds: Any) -> Iterable[Any]:
    if kinds is None:
        return ()
    return (kinds,) if inspect.isclass(kinds) or isinstance(kinds, str) else kinds


def _error_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def micros_of(eta: Any) -> int:
    moment = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * MICRO)
