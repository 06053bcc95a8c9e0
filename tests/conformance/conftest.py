"""What tests of the message store begin with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..statements import Executed, watching

LEASE = timedelta(seconds=30)


@pytest.fixture
def lessee(store: SQLMessageStore) -> int:
    """A worker with a lease of 30 seconds."""
    return store.enrol("worker", lease_for=LEASE)


@pytest.fixture
def other(store: SQLMessageStore) -> int:
    """Another one, with a lease of an hour."""
    return store.enrol("other", lease_for=timedelta(hours=1))


@pytest.fixture
def executed(database: Database) -> Callable[[], AbstractContextManager[Executed]]:
    """Notes the statements that are executed in a ``with`` block."""
    return lambda: watching(database)
