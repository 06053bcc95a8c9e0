"""What a schedule hands to its task, as JSON: also dates, decimals and UUIDs, as Celery's own serializer has them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from kombu.exceptions import EncodeError
from kombu.utils import json as kombu_json

from ..errors import ScheduleError

__all__ = ["frozen", "thawed"]


def frozen(what: str, value: Any) -> Any:
    """The value in what JSON has. Raises ScheduleError, which names `what`, if it does not fit."""
    try:
        return json.loads(kombu_json.dumps(_plain(value)))
    except (EncodeError, TypeError, ValueError) as error:
        raise ScheduleError(f"{what} cannot be stored, it does not fit into JSON: {error}") from error


def thawed(value: Any) -> Any:
    """What `frozen` was given."""
    return kombu_json.loads(json.dumps(value))


def _plain(value: Any) -> Any:
    """Without what Celery's JSON does not know, but its options take."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple | set | frozenset) else value
