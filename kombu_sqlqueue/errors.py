"""The errors this package raises, under one root."""

from __future__ import annotations

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
]


class SQLQueueError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigurationError(SQLQueueError, ValueError):
    """A URL or an option is wrong; the text names it and the way out."""


class MessageTooBigError(SQLQueueError, ValueError):
    """A message, or a result, is larger than the option ``max_message_bytes`` or the database allows."""


class SchemaError(SQLQueueError):
    """The tables are missing or older than the code; the text says which command to run."""


class StoreUnavailableError(SQLQueueError, ConnectionError):
    """The database cannot be reached or refuses work just now; a later try may succeed."""


class OutcomeUnknownError(SQLQueueError):
    """The connection broke at a commit and nobody can tell whether it took effect.

    It is not a connection error on purpose: repeating the operation could do it twice.
    """


class TransactionNotSupportedError(SQLQueueError):
    """A message cannot take part in the caller's transaction; the text says why and the way out."""


class TransactionFailedError(SQLQueueError):
    """A message could not be stored in the caller's transaction, which has to be rolled back.

    It is not a connection error on purpose: repeating the operation alone would be of no use.
    """


class LeaseLostError(SQLQueueError):
    """Someone else holds the message now. Expected after a long stall, not a fault."""


class NotFoundError(SQLQueueError, LookupError):
    """There is no such message, queue or result."""
