"""A line to a database server that breaks when told to."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]


class Proxy:
    """Listens on a port of its own and passes everything on, both ways."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.broken = 0
        self._words: bytes | None = None
        self._answered = False
        self._for_good = False

    def break_at(self, words: bytes, *, answered: bool = False, for_good: bool = False) -> None:
        """Break the next line on which these words are sent: before the server hears them, or after it has
        `answered` but before that arrives. A line broken `for_good` cannot be made again."""
        self._words, self._answered, self._for_good = words, answered, for_good

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data or self._breaks(data, server, heard_from_client=key.fileobj is client):
                        return
                    key.data.sendall(data)

    def _breaks(self, data: bytes, server: socket.socket, *, heard_from_client: bool) -> bool:
        if not heard_from_client or self._words is None or self._words not in data:
            return False
        self._words = None
        self.broken += 1
        if self._answered:
            server.sendall(data)
            server.recv(65536)
        if self._for_good:
            self._hang_up()
        return True

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
