"""Celery broker and result backend on a SQL database.

Nothing needs to be imported: once installed, the URLs ``sqlqueue+postgresql://`` and
``sqlqueue+sqlite:///`` work in every Celery app. The names below are for those who want more;
they load on first use, and importing this package imports neither SQLAlchemy nor Celery.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import register as _register  # noqa: F401  A bare kombu.Connection loads no entry points.

if TYPE_CHECKING:
    from .bulk import bulk_publish
    from .errors import (
        ConfigurationError,
        LeaseLostError,
        MessageTooBigError,
        NotFoundError,
        OutcomeUnknownError,
        SchemaError,
        SQLQueueError,
        StoreUnavailableError,
        TransactionFailedError,
        TransactionNotSupportedError,
    )
    from .transactions import in_transaction

__all__ = [
    "ConfigurationError",
    "LeaseLostError",
    "MessageTooBigError",
    "NotFoundError",
    "OutcomeUnknownError",
    "SQLQueueError",
    "SchemaError",
    "StoreUnavailableError",
    "TransactionFailedError",
    "TransactionNotSupportedError",
    "__version__",
    "bulk_publish",
    "in_transaction",
]

__version__ = "0.1.0"

_HOMES = {name: ".errors" for name in __all__ if name.endswith("Error")} | {
    "bulk_publish": ".bulk",
    "in_transaction": ".transactions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
