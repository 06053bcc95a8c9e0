"""What we need to know of Celery's signatures: where their results are, and who is told of their failures."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from celery.canvas import _chain as chain_type
from celery.canvas import chord, group, maybe_signature
from celery.exceptions import ChordError

__all__ = ["chord_error", "drop_errbacks", "ends", "errbacks", "leaves"]


def ends(signature: Any) -> Iterator[Any]:
    """The tasks whose results are the result of the signature."""
    if isinstance(signature, group):
        for task in signature.tasks:
            yield from ends(maybe_signature(task, app=signature.app))
    elif isinstance(signature, chord):
        yield from ends(signature.body)
    elif isinstance(signature, chain_type) and signature.tasks:
        yield from ends(maybe_signature(signature.tasks[-1], app=signature.app))
    else:
        yield signature


def leaves(results: Any) -> Iterator[str]:
    """The ids of the tasks in a list of what `as_tuple` made of results."""
    for (task_id, _), members in results:
        if members is None:
            yield task_id
        else:
            yield from leaves(members)


def chord_error(text: str, cause: Any) -> ChordError:
    """An error with its cause, where that is one."""
    error = ChordError(text)
    if isinstance(cause, Exception):
        error.__cause__ = cause
    return error


def errbacks(body: Any) -> set[str]:
    """Who is told when the body fails, each in a form that can be stored and compared."""
    return {_text(errback) for holder in (body, *ends(body)) for errback in _linked(holder)}


def drop_errbacks(body: Any, told: Collection[str]) -> None:
    """Let the body's failure not be told to those who have been told already."""
    for holder in (body, *ends(body)):
        if told and "link_error" in holder.options:
            holder.options["link_error"] = [errback for errback in _linked(holder) if _text(errback) not in told]


def _linked(signature: Any) -> list[Any]:
    linked = signature.options.get("link_error") or []
    return linked if isinstance(linked, list | tuple) else [linked]  # type: ignore[return-value]


def _text(errback: Any) -> str:
    return json.dumps(errback, sort_keys=True, default=repr)
