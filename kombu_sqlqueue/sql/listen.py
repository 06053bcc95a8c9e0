"""Listening to PostgreSQL's notifications on a connection of its own, outside of any pool."""

from __future__ import annotations

import selectors
import socket
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from ..errors import StoreUnavailableError
from ..notifier import DeafError

__all__ = ["Listener"]

#: For how many seconds to wait for a notification that was sent to find out whether any arrive.
PROBE_FOR = 2.0


class Listener:
    """Hears what is announced on a channel, with a connection made of the parameters as they are at that time.

    The `question` asks for the channel's name and the process id of the session. `wait` belongs to one
    thread, `interrupt` to any.
    """

    def __init__(self, parameters: Callable[[], Mapping[str, Any]], question: str) -> None:
        self._parameters = parameters
        self._question = question
        self._connection: psycopg.Connection[Any] | None = None
        self._pipe, self._interrupter = socket.socketpair()
        self._pipe.setblocking(False)
        self._interrupter.setblocking(False)

    def wait(self, timeout: float) -> frozenset[str] | None:
        """The topics announced within `timeout` seconds; None, if some may have been missed.

        Raises StoreUnavailableError if the connection is gone; the next call makes a new one.
        Raises DeafError if nothing will ever arrive on it.
        """
        try:
            if self._connection is None:
                self._connection = self._opened()
                self._listen(self._connection)
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

    def _opened(self) -> psycopg.Connection[Any]:
        return psycopg.connect(**{**self._parameters(), "autocommit": True, "prepare_threshold": None})

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        [[channel, pid]] = connection.execute(self._question)
        # Another than we were told at the beginning: there is a pooler in between.
        if pid != connection.info.backend_pid and not self._hears(connection):
            self._hang_up()
            raise DeafError
        connection.execute(_listen_to(channel))

    def _hears(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether what another session announces arrives: not, if a pooler lends us one for each transaction."""
        # Of a name that nobody will use: a session of the server may go on listening.
        channel = f"sqlqueue_probe_{uuid.uuid4().hex}"
        connection.execute(_listen_to(channel))
        with self._opened() as other:
            other.execute("SELECT pg_notify(%s, '')", (channel,))
        return any(True for _ in connection.notifies(timeout=PROBE_FOR, stop_after=1))

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


def _listen_to(channel: str) -> sql.Composed:
    return sql.SQL("LISTEN {}").format(sql.Identifier(channel))
