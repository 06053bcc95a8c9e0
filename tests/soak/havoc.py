"""What is done to the processes of a soak."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

from ..celery.workers import ROOT, Site, Worker
from .accounts import EVERYONE, Fault
from .scenario import LEASE, Scenario

__all__ = ["Crew", "Havoc"]

#: A worker that lost its connections needs so long, in seconds, to sort out what it had.
SETTLES_IN = LEASE + 2


class Crew:
    """The workers and producers. Who dies is replaced, a worker by one of another name."""

    def __init__(self, site: Site, scenario: Scenario) -> None:
        self._site = site
        self._scenario = scenario
        self._generations = 0
        share = scenario.tasks // scenario.producers
        self._shares = [(nth * share, share) for nth in range(scenario.producers)]
        self.workers = {slot: self._worker(slot) for slot in range(len(scenario.workers))}
        self.producers = {slot: self._producer(slot) for slot in range(scenario.producers)}

    def name(self, worker: Worker) -> str:
        return worker.log.stem

    def replace(self, slot: int) -> None:
        self.workers[slot] = self._worker(slot)

    def kill_producer(self, slot: int) -> None:
        self.producers[slot].kill()
        self.producers[slot].wait()
        self.producers[slot] = self._producer(slot)

    @property
    def ready(self) -> dict[int, Worker]:
        """The workers that have started to work."""
        return {slot: worker for slot, worker in self.workers.items() if " ready." in worker.text}

    def children(self, worker: Worker) -> list[tuple[int, Worker]]:
        """The processes of its pool, if it has such."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [(child.pid, worker) for child in psutil.Process(worker.process.pid).children()]
        return []

    def stop(self) -> None:
        """End the workers as a deploy does."""
        for worker in self.workers.values():
            worker.signal(signal.SIGTERM)
        for worker in self.workers.values():
            worker.process.wait(60)

    @property
    def producing(self) -> list[int]:
        """The producers that have not sent all."""
        return [slot for slot, process in self.producers.items() if process.poll() is None]

    def close(self) -> None:
        for process in self.producers.values():
            process.kill()
            process.wait()

    def _worker(self, slot: int) -> Worker:
        self._generations += 1
        arguments = self._scenario.workers[slot]
        name = f"s{slot}-{self._generations}"
        return self._site.worker(*arguments, name=name, wait=False, app="tests.soak.tasks")

    def _producer(self, slot: int) -> subprocess.Popen[bytes]:
        first, count = self._shares[slot]
        numbers = [str(first), str(count), str(self._scenario.pace)]
        log = (self._site.directory / f"producer{slot}.log").open("ab")
        command = [sys.executable, "-m", "tests.soak.producing", *numbers]
        return subprocess.Popen(command, env=self._site.environment, cwd=ROOT, stdout=log, stderr=log)


class Havoc:
    """A thread that does something bad every few seconds, and remembers it."""

    def __init__(
        self, crew: Crew, scenario: Scenario, *, cut: Callable[[], int], restart: Callable[[bool], object] | None = None
    ) -> None:
        self._crew = crew
        self._scenario = scenario
        self._cut_all = cut
        self._restart_database = restart
        self._random = random.Random(scenario.seed)
        self._over = threading.Event()
        self._began_at = time.monotonic()
        self._restarts = 0
        #: The kinds of faults still to come before all come again, in another order.
        self._round: list[str] = []
        #: Stopped workers by slot, with when to let them go on.
        self._stopped: dict[int, tuple[float, Worker]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.faults: list[Fault] = []
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._wake(math.inf)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            next_at = self._next_at()
            while not self._over.wait(0.1):
                self._wake(time.monotonic())
                if time.monotonic() >= next_at and len(self.faults) < self._scenario.most_faults:
                    self._do_something()
                    self._restart()
                    next_at = self._next_at()
        except Exception as error:  # noqa: BLE001 - for the thread that waits
            self.error = error

    def _next_at(self) -> float:
        return time.monotonic() + self._random.uniform(*self._scenario.between)

    def _do_something(self) -> None:
        """The next kind of fault; one for which there is nobody just now comes again in the next round."""
        known = len(self.faults)
        for _ in self._scenario.faults:
            if not self._round:
                self._round = self._random.sample(sorted(self._scenario.faults), k=len(self._scenario.faults))
            getattr(self, "_" + self._round.pop().replace(" ", "_"))()
            if len(self.faults) > known:
                return

    def _kill_worker(self) -> None:
        for slot, worker in self._one_of(self._crew.ready):
            self._remember("kill worker", worker)
            worker.kill()
            self._crew.replace(slot)

    def _kill_parent(self) -> None:
        for slot, worker in self._one_of(self._crew.ready):
            self._remember("kill parent", worker)
            worker.signal(signal.SIGKILL)
            worker.process.wait()
            self._crew.replace(slot)

    def _kill_child(self) -> None:
        children = [child for worker in self._awake(self._crew.ready).values() for child in self._crew.children(worker)]
        for child, worker in self._random.sample(children, k=min(1, len(children))):
            self._remember("kill child", worker, pid=child)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def _kill_producer(self) -> None:
        producing = self._crew.producing
        for slot in self._random.sample(producing, k=min(1, len(producing))):
            self.faults.append(Fault("kill producer", f"producer {slot}", time.time()))
            self._crew.kill_producer(slot)

    def _stop_worker(self) -> None:
        for slot, worker in self._one_of(self._crew.ready):
            self._remember("stop worker", worker, lasts=self._scenario.stopped_for + 2 * SETTLES_IN)
            worker.signal_group(signal.SIGSTOP)
            self._stopped[slot] = (time.monotonic() + self._scenario.stopped_for, worker)

    def _cut(self) -> None:
        at = time.time()
        if self._cut_all():
            self.faults.append(Fault("cut", EVERYONE, at, time.time() + SETTLES_IN))

    def _restart(self) -> None:
        due = sum(time.monotonic() - self._began_at >= at for at in self._scenario.restarts)
        if self._restart_database is None or due <= self._restarts:
            return
        at = time.time()
        crash = self._restarts % 2 == 1
        self._restart_database(crash)
        self._restarts += 1
        self.faults.append(Fault("crash" if crash else "restart", EVERYONE, at, time.time() + SETTLES_IN))

    def _wake(self, now: float) -> None:
        for slot, (at, worker) in list(self._stopped.items()):
            if at <= now:
                del self._stopped[slot]
                worker.signal_group(signal.SIGCONT)

    def _one_of(self, workers: dict[int, Worker]) -> list[tuple[int, Worker]]:
        """One of those that are not stopped, or none."""
        awake = sorted(self._awake(workers).items())
        return self._random.sample(awake, k=min(1, len(awake)))

    def _awake(self, workers: dict[int, Worker]) -> dict[int, Worker]:
        return {slot: worker for slot, worker in workers.items() if slot not in self._stopped}

    def _remember(self, kind: str, worker: Worker, *, lasts: float = math.inf, pid: int = 0) -> None:
        at = time.time()
        self.faults.append(Fault(kind, self._crew.name(worker), at, at + lasts, pid))
