"""A line to a database server that breaks when told to."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["Pooler", "Proxy"]

#: A statement to be parsed and kept under a name. One that is parsed for once has none.
PREPARES = re.compile(rb"P.{4}_pg3_\d+\0", re.DOTALL)


class Proxy:
    """Listens on a port of its own and passes everything on, both ways.

    The `server` is a host and a port, or the path of a socket. A `port` that is told is the one of another line
    that was broken for good.
    """

    def __init__(self, server: tuple[str, int] | str, port: int = 0) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self.broken = 0
        self._words: bytes | None = None
        self._answered = False
        self._for_good = False
        self._skip = 0
        self._flows = threading.Event()
        self._flows.set()
        #: Seconds that each answer takes longer.
        self.delay = 0.0

    def break_at(self, words: bytes, *, skip: int = 0, answered: bool = False, for_good: bool = False) -> None:
        """Break the next line on which these words are sent, `skip` times aside: before the server hears them, or
        after it has `answered` but before that arrives. A line broken `for_good` cannot be made again."""
        self._words, self._skip, self._answered, self._for_good = words, skip, answered, for_good

    def break_nowhere(self) -> None:
        """Forget what `break_at` said."""
        self._words = None

    def stall(self) -> None:
        """Pass nothing on, neither way, until `flow`: as if the other end had been stopped."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._flows.set()
        self._hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = self._connected()
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _connected(self) -> socket.socket:
        if isinstance(self._server, tuple):
            return socket.create_connection(self._server)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        return server

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    self._flows.wait()
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data or self._breaks(data, server, heard_from_client=key.fileobj is client):
                        return
                    if key.fileobj is client and (refusal := self._refusal(data)):
                        client.sendall(refusal)
                        return
                    if key.fileobj is server:
                        time.sleep(self.delay)
                    self._flows.wait()
                    key.data.sendall(data)

    def _breaks(self, data: bytes, server: socket.socket, *, heard_from_client: bool) -> bool:
        if not heard_from_client or self._words is None or self._words not in data:
            return False
        if self._skip:
            self._skip -= 1
            return False
        self._words = None
        self.broken += 1
        if self._answered:
            server.sendall(data)
            server.recv(65536)
        if self._for_good:
            self._hang_up()
        return True

    def _refusal(self, data: bytes) -> bytes | None:
        """What the client is told instead of passing this on."""
        return None

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


class Pooler(Proxy):
    """A line through something that, as PgBouncer, passes no settings on."""

    def __init__(self, server: tuple[str, int] | str) -> None:
        super().__init__(server)
        self.refused = 0
        self.prepared = 0

    def _refusal(self, data: bytes) -> bytes | None:
        self.prepared += len(PREPARES.findall(data))
        if b"\0options\0" not in data:
            return None
        self.refused += 1
        said = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
        return b"E" + (len(said) + 4).to_bytes(4, "big") + said
