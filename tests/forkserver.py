"""A process that has imported what every `celery` command imports, and forks whenever one is to be started.

What runs in the fork is `python -m celery` from its first line to its exit, in a session of its own, with the environment and the
directory asked for. Only the import of other people's code is saved, which is most of what a start costs. Nothing of ours is
imported here but what Celery and Kombu load by themselves, through entry points.

Run by `starting.py` as `python -m tests.forkserver <listener> <life> <directory>`: the numbers of two descriptors, and a place for its files.
It ends when the other end of `life` is closed. Each connection to the listener asks for one process: JSON with `arguments`, `environment` and `directory`, and beside
it the descriptor to write its output to. The answer is a line with the number of the process, and one with its exit code when it has ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

#: What a worker, a beat or a relay has imported when it is ready, as far as others wrote it.
#: Not flower: that it is there makes a difference to us.
MODULES = (
    "celery.bin.celery",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.log",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.base",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.events.state",
    "celery.fixups.django",
    "celery.loaders.app",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.control",
    "celery.worker.strategy",
    "kombu.asynchronous.hub",
    "kombu.pidbox",
    "kombu.transport.virtual",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "alembic.migration",
    "croniter",
    "msgpack",
    "psycopg",
    "pymysql",
    "redis",
    "tornado.web",
)


class Server:
    """Answers until it is told to end."""

    def __init__(self, listener: int, life: int) -> None:
        self._listener = socket.socket(fileno=listener)
        self._life = life
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._asked: dict[int, socket.socket] = {}

    def run(self) -> dict[str, Any]:
        """Serve. Returns in each fork, with what was asked for."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker)
        while True:
            ready, _, _ = select.select([self._listener, self._life, self._woken], [], [])
            if self._life in ready:
                os._exit(0)
            if self._woken in ready:
                os.read(self._woken, 1000)
                self._reap()
            if self._listener in ready and (request := self._fork()) is not None:
                return request

    def _fork(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        text, [output], _, _ = socket.recv_fds(connection, 65536, 1)
        while more := connection.recv(65536):
            text += more
        if pid := os.fork():
            os.close(output)
            self._asked[pid] = connection
            return None
        self._forget()
        os.setsid()
        connection.sendall(b"%d\n" % os.getpid())
        connection.close()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        return json.loads(text)  # type: ignore[no-any-return]

    def _forget(self) -> None:
        """Leave the fork nothing of the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._listener.close()
        for connection in self._asked.values():
            connection.close()
        for descriptor in (self._life, self._woken, self._waker):
            os.close(descriptor)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = ended
                with self._asked.pop(pid) as connection, contextlib.suppress(BrokenPipeError):
                    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def become(request: dict[str, Any]) -> NoReturn:
    """Be the `celery` that was asked for, as if begun there and with that."""
    own_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [os.getcwd(), *path, *(each for each in sys.path[1:] if each not in own_path)]
    importlib.invalidate_caches()
    sys.argv = ["celery", *request["arguments"]]
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
    sys.exit()


def main() -> None:
    listener, life, directory = sys.argv[1:]
    server = Server(int(listener), int(life))
    for name in MODULES:
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    if sys.dont_write_bytecode:
        # Each fork would compile ours anew. Here it is done once, and nothing is left among the sources.
        sys.dont_write_bytecode, sys.pycache_prefix = False, directory
    gc.freeze()
    become(server.run())


if __name__ == "__main__":
    main()
