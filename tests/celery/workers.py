"""Real workers in real processes, and what became of their tasks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from celery import Celery, Signature
from celery.result import AsyncResult
from sqlalchemy import func, select

from kombu_sqlqueue.messages import DeadMessage, QueueCounts
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.admin import SQLAdmin

from ..starting import Process, start_celery

__all__ = ["Site", "Worker", "eventually", "kill_group"]

ROOT = Path(__file__).parents[2]


def eventually(condition: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Wait until `condition` gives something true and return it; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{condition} did not hold within {timeout} s"
        time.sleep(0.05)


def kill_group(process: Process) -> None:
    """kill -9 of a process that leads its group, and of what is left of that, unless the number is somebody else's by now."""
    if process.poll() is None or not psutil.pid_exists(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Worker:
    """A `celery worker` process in a process group of its own."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> Worker:
        eventually(lambda: " ready." in self.text or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.text
        return self

    def processor_time(self) -> float:
        """Seconds of a processor that it and its children have used."""
        parent = psutil.Process(self.process.pid)
        times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """kill -9 of the worker and all its children."""
        kill_group(self.process)

    def stop(self, timeout: float = 60.0) -> int:
        """Warm shutdown."""
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout)


class Site:
    """One broker with its workers: what a deployment is."""

    def __init__(
        self, database: DatabaseOptions, directory: Path, *, options: dict[str, Any] | None = None, **conf: Any
    ) -> None:
        url = f"sqlqueue+{database.url}"
        self.database = database
        self.marks_file = directory / "marks"
        self.directory = directory
        self.workers: list[Worker] = []
        self._commands = 0
        settings = {"broker_transport_options": {"schema": database.schema, "lease_for": 3, **(options or {})}, **conf}
        #: The same app as the workers', to send from here.
        self.app = Celery("tests", broker=url, backend=url, set_as_current=False)
        self.app.conf.update(settings)
        self.environment = {
            **os.environ,
            "TEST_BROKER_URL": url,
            "TEST_RESULT_BACKEND": url,
            "TEST_CONF": json.dumps(settings),
            "TEST_MARKS": str(self.marks_file),
            "C_FORCE_ROOT": "1",
            "PYTHONPATH": str(ROOT),
        }

    def task(self, name: str, *args: Any, **options: Any) -> Signature:
        """A signature of the task `name` of the app under test."""
        return self.app.signature(f"tests.celery.tasks.{name}", args, options=options)

    def send(self, name: str, *args: Any, **options: Any) -> AsyncResult:
        """Send the task `name` of the app under test."""
        return self.task(name, *args).apply_async(**options)

    def worker(self, *arguments: str, name: str | None = None, wait: bool = True, app: str = "tests.celery.tasks") -> Worker:
        name = name or f"w{len(self.workers) + 1}"
        if not any(each.startswith("-c") for each in arguments):
            arguments = ("-c1", *arguments)
        worker = self.start("-A", app, "worker", "-l", "INFO", "-n", f"{name}@test", *arguments, name=name)
        self.workers.append(worker)
        return worker.wait_ready() if wait else worker

    def beat(self, *, name: str = "beat") -> Worker:
        """A `celery beat` process with the schedule of the settings; its log may be read as a worker's."""
        beat = self.start("-A", "tests.celery.tasks", "beat", "-l", "INFO", "-s", f"{name}.schedule", name=name)
        self.workers.append(beat)
        return beat

    def run(self, *arguments: str, timeout: float = 120.0) -> Worker:
        """A command of the app under test, when it has ended: what it said is its `text`, errors too."""
        self._commands += 1
        command = self.start("-A", "tests.celery.tasks", *arguments, name=f"command{self._commands}")
        try:
            command.process.wait(timeout)
        finally:
            command.kill()
        return command

    def start(self, *arguments: str, name: str, **environment: str) -> Worker:
        """A `celery` command, with a log of this name, and perhaps something else in its environment."""
        log = self.directory / f"{name}.log"
        process = start_celery(*arguments, log=log, environment=self.environment | environment, directory=self.directory)
        return Worker(process, log)

    def marks(self, text: str | None = None) -> list[str]:
        """What tasks recorded, in order."""
        try:
            lines = self.marks_file.read_text().splitlines()
        except FileNotFoundError:
            return []
        texts = [line.split(" ", 2)[2] for line in lines]
        return [each for each in texts if text is None or each == text]

    def times(self, text: str) -> list[float]:
        """When a mark was recorded, seconds since 1970."""
        lines = self.marks_file.read_text().splitlines() if self.marks_file.exists() else []
        return [float(line.split(" ", 2)[0]) for line in lines if line.split(" ", 2)[2] == text]

    def counts(self, queue: str = "celery") -> QueueCounts:
        """How many messages of the queue are where."""
        return next(iter(process_for(self.database).messages.counts([queue])), QueueCounts(queue))

    def waiting(self, queue: str = "celery") -> int:
        """How many messages of the queue are not done with."""
        counts = self.counts(queue)
        return counts.ready + counts.delayed + counts.leased + counts.started

    def begun(self) -> int:
        """How many messages the database knows to have begun."""
        database = process_for(self.database).database
        m = database.tables.message.c
        return database.statement(lambda tx: tx.execute(select(func.count(m.begun_at))).scalar_one())

    def dead(self) -> list[DeadMessage]:
        """What was set aside, the latest first."""
        return SQLAdmin(process_for(self.database).database).dead(limit=1000)

    def queues(self) -> set[str]:
        """The names of all declared queues."""
        return {queue.name for queue in process_for(self.database).routing.queues()}

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.app.close()
