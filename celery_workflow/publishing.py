"""Sending tasks as part of a transaction of the app's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu_sqlqueue import in_transaction
from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.process import process_for

from .home import Home

__all__ = ["check_reach", "within"]


def check_reach(home: Home) -> None:
    """Raises ConfigurationError where what is sent cannot take part in transactions of this database."""
    if not home.is_broker and not home.has_outbox:
        raise ConfigurationError(
            "tasks are sent in the transactions of the database that workflows and schedules are stored in, but the broker"
            " is another one: leave workflow_store_url unset with a sqlqueue broker, or set sqlqueue_outbox with a broker"
            " of another kind"
        )


@contextmanager
def within(home: Home, tx: Any, connection: Any) -> Iterator[None]:
    """Let what is sent by this thread inside be a part of the transaction `tx`. `connection` is the broker's that sends,
    None with an outbox."""
    database = home.database
    if home.has_outbox:
        with in_transaction(tx):
            yield
        return
    with database.joined(tx):
        if database.has_writers:
            yield
            return
        # With one writer a declaration takes part, and vanishes if the transaction does.
        _declare_anew(home, connection)
        yield
        _declare_anew(home, connection)


def _declare_anew(home: Home, connection: Any) -> None:
    connection.declared_entities.clear()
    process_for(home.options).routes.forget()
