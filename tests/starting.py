"""`celery` commands in processes of their own."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

__all__ = ["Process", "start_celery"]

ROOT = Path(__file__).parents[1]
#: These replace what the standard library has before anything else is imported: a fork would come too late.
PATCHING_POOLS = frozenset({"gevent", "eventlet"})


class Process(Protocol):
    """As much of `subprocess.Popen` as there is of one that somebody else has started."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


def start_celery(*arguments: str, log: Path, environment: Mapping[str, str], directory: Path) -> Process:
    """`python -m celery` with these arguments, in a session of its own; its output is added to the log."""
    with log.open("ab") as output:
        if PATCHING_POOLS.isdisjoint(arguments):
            return _server().start(arguments, output.fileno(), environment, directory)
        return subprocess.Popen(
            [sys.executable, "-m", "celery", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )


class _Forked:
    """A process of the fork server, which tells us its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._told = b""
        self._lock = threading.Lock()
        assert self._hear(None, lines=1), "the fork server did not start a process"
        self.pid = int(self._told.split()[0])

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the number of the signal that ended it. Raises `subprocess.TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"celery ({self.pid})", timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _ended(self, timeout: float | None) -> int | None:
        return int(self._told.split()[1]) if self._hear(timeout, lines=2) else None

    def _hear(self, timeout: float | None, *, lines: int) -> bool:
        """Whether as many lines have come within so many seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._told.count(b"\n") < lines:
                left = None if until is None else max(0.0, until - time.monotonic())
                if not select.select([self._connection], [], [], left)[0]:
                    return False
                more = self._connection.recv(100)
                assert more, "the fork server is gone"
                self._told += more
            if lines == 2:
                self._connection.close()
            return True


class _ForkServer:
    """The server of this process, which ends with it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="sqlqueue-fork-")
        self._address = f"{self._directory.name}/socket"
        its_life, self._life = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forkserver", str(listener.fileno()), str(its_life), self._directory.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "C_FORCE_ROOT": "1", "PYTHONPATH": str(ROOT)},
                pass_fds=(listener.fileno(), its_life),
                start_new_session=True,
            )
        os.close(its_life)
        atexit.register(self._end)

    def start(self, arguments: tuple[str, ...], output: int, environment: Mapping[str, str], directory: Path) -> _Forked:
        request = {"arguments": arguments, "environment": dict(environment), "directory": str(directory)}
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        text = json.dumps(request).encode()
        sent = socket.send_fds(connection, [text], [output])
        connection.sendall(text[sent:])
        connection.shutdown(socket.SHUT_WR)
        return _Forked(connection)

    def _end(self) -> None:
        os.close(self._life)
        self._process.wait()
        self._directory.cleanup()


@functools.cache
def _server() -> _ForkServer:
    return _ForkServer()
