"""Listening to PostgreSQL's notifications on a connection of its own, outside of any pool."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from ..errors import StoreUnavailableError

__all__ = ["Listener"]


class Listener:
    """Hears what is announced on the channel that the query `channel` names. `wait` belongs to one thread, `interrupt` to any."""

    def __init__(self, parameters: Mapping[str, Any], channel: str) -> None:
        self._parameters = parameters
        self._channel = channel
        self._connection: psycopg.Connection[Any] | None = None
        self._pipe, self._interrupter = socket.socketpair()
        self._pipe.setblocking(False)
        self._interrupter.setblocking(False)

    def wait(self, timeout: float) -> frozenset[str] | None:
        """The topics announced within `timeout` seconds; None, if some may have been missed.

        Raises StoreUnavailableError if the connection is gone; the next call makes a new one.
        """
        try:
            if self._connection is None:
                self._connection = self._connect()
                return None
            return self._heard(self._connection, 0) or self._wait(self._connection, timeout)
        except (psycopg.Error, OSError) as error:
            self._hang_up()
            raise StoreUnavailableError(f"the connection that listens is gone: {str(error).strip()}") from error

    def interrupt(self) -> None:
        """Make `wait` return soon."""
        # It is full, so that `wait` is about to return, or closed.
        with suppress(OSError):
            self._interrupter.send(b"!")

    def close(self) -> None:
        self._hang_up()
        self._pipe.close()
        self._interrupter.close()

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(**self._parameters, autocommit=True)
        [[channel]] = connection.execute(self._channel)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return connection

    def _wait(self, connection: psycopg.Connection[Any], timeout: float) -> frozenset[str]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            selector.register(connection.fileno(), selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(timeout)}
        if self._pipe in ready:
            self._pipe.recv(4096)
        return self._heard(connection, 0) if connection.fileno() in ready else frozenset()

    def _heard(self, connection: psycopg.Connection[Any], timeout: float) -> frozenset[str]:
        return frozenset(notify.payload for notify in connection.notifies(timeout=timeout))

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
