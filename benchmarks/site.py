"""One visit to one peer: its processes, what they spend, and what their tasks left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .figures import Values
from .marks import Mark
from .servers import Server
from .setting import Setting

__all__ = ["Failed", "Site", "Snapshot", "Worker"]

#: How many tasks run before anything is measured: they import, connect and fork.
WARM = 20


class Failed(Exception):
    """A process of the visit failed; the text is the end of what it said."""


@dataclass(frozen=True)
class Snapshot:
    """Seconds of CPU, and tasks done, so far."""

    moment: float
    done: int
    main: float
    children: float
    server: float | None


class Worker:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def cpu(self) -> tuple[float, float]:
        """Of its main process, and of that one's children."""
        main, children = 0.0, 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            main = _own(process)
            children = sum(map(_own, process.children(recursive=True)))
        return main, children

    def memory(self) -> float:
        """Of its main process, in MB."""
        return float(psutil.Process(self.pid).memory_info().rss) / 2**20

    def kill(self) -> None:
        """With all that it started: the group is its own. Nothing that it could still do is wanted."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class Site:
    def __init__(self, setting: Setting, server: Server | None, place: str, directory: Path) -> None:
        self.setting = setting
        self._server = server
        self._place = place
        self._directory = directory
        self._marks = setting.marks
        self._workers: list[Worker] = []
        self._watchers: list[Worker] = []

    # -- processes ------------------------------------------------------------------------

    def do(self, action: str, *, timeout: float = 1800, **given: Any) -> Values:
        """Have a process of its own do this, and wait for what it tells."""
        process = self._start(action, given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return self._told(action, process, timeout)

    def do_together(self, times: int, action: str, *, timeout: float = 600, **given: Any) -> list[Values]:
        """So many processes at once, let go when all are there."""
        gate = self._directory / "gate"
        given["gate"] = str(gate)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes = [self._start(action, given, **pipes) for _ in range(times)]
        deadline = time.monotonic() + timeout
        while len(list(self._directory.glob("gate.*"))) < times and time.monotonic() < deadline:
            if any(process.poll() for process in processes):
                break
            time.sleep(0.02)
        gate.touch()
        return [self._told(action, process, timeout) for process in processes]

    def start_worker(self, pool: str = "prefork", concurrency: int = 2, *, first: int = 0) -> Worker:
        given = {"pool": pool, "concurrency": concurrency, "first": first}
        worker = self._start_logged(f"worker{len(self._workers)}", "work", given)
        self._workers.append(worker)
        return worker

    def start_flower(self) -> Worker:
        """Flower beside the workers, when its page can be had."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        flower = self._start_logged("flower", "watch", {"port": port})
        self._watchers.append(flower)
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return flower
            if not flower.is_alive or time.monotonic() > deadline:
                raise Failed(f"Flower did not start: {_end(flower.text)}")
            time.sleep(0.1)

    def start_warm_worker(self, pool: str = "prefork", concurrency: int = 2) -> Worker:
        """One that has run tasks already, and has had time to become idle."""
        worker = self.start_worker(pool, concurrency)
        self.do("warm", n=WARM)
        self.wait(WARM, 60)
        time.sleep(1.5)
        return worker

    def close(self) -> None:
        for process in (*self._watchers, *self._workers):
            process.kill()
        self._workers.clear()

    def _start_logged(self, name: str, action: str, given: dict[str, Any]) -> Worker:
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            return Worker(self._start(action, given, stdout=output, stderr=output, start_new_session=True), log)

    def _start(self, action: str, given: dict[str, Any], **how: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.child", action, json.dumps(given)]
        return subprocess.Popen(command, cwd=self._directory, env=self.setting.environment(), **how)

    def _told(self, action: str, process: subprocess.Popen[bytes], timeout: float) -> Values:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed(f"{action} took more than {timeout:.0f} s") from None
        if process.returncode:
            raise Failed(f"{action}: {_end(errors.decode(errors='replace'))}")
        values: Values = json.loads(output.splitlines()[-1])
        return values

    # -- watching -------------------------------------------------------------------------

    def wait(self, done: int, timeout: float) -> int:
        """Until so many tasks have run, or the time is over; the answer is how many have."""
        deadline = time.monotonic() + timeout
        while (count := self._marks.count()) < done and time.monotonic() < deadline:
            self._check_workers()
            time.sleep(0.02)
        if count == 0:
            raise Failed(f"no task ran within {timeout:.0f} s: {_end(''.join(worker.text for worker in self._workers))}")
        return count

    def wait_ready(self, timeout: float = 180) -> None:
        """Until all workers, which are Celery's, take tasks."""
        deadline = time.monotonic() + timeout
        while len(list(self._directory.glob("*.ready"))) < len(self._workers):
            self._check_workers()
            if time.monotonic() > deadline:
                raise Failed(f"not all workers were ready within {timeout:.0f} s")
            time.sleep(0.05)

    def _check_workers(self) -> None:
        for worker in self._workers:
            if not worker.is_alive:
                raise Failed(f"a worker ended: {_end(worker.text)}")

    def marks(self) -> list[Mark]:
        return self._marks.load()

    def snapshot(self) -> Snapshot:
        spent = [worker.cpu() for worker in self._workers]
        server = self._server.cpu() if self._server else None
        main, children = sum(main for main, _ in spent), sum(children for _, children in spent)
        return Snapshot(time.monotonic(), self._marks.count(), main, children, server)

    def settle(self) -> None:
        if self._server:
            self._server.settle(self._place)

    def pinned(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile a transaction of somebody else is open, so that nothing deleted can be cleared away."""
        return self._server.pinned(self._place) if self._server else contextlib.nullcontext()

    def commands(self) -> float | None:
        """What the server has been asked so far."""
        return self._server.commands(self._place) if self._server else None


def _own(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _end(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-6:])[-600:]
