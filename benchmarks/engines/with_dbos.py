"""DBOS: durable workflows, of which a task is the smallest: one without a step, from a queue."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from functools import cached_property

from dbos import DBOS, DBOSClient

from . import Engine, Message

__all__ = ["ENGINE"]


class DBOSEngine(Engine):
    _runs_here = False

    @cached_property
    def _client(self) -> DBOSClient:
        return DBOSClient(system_database_url=self._url)

    @property
    def _url(self) -> str:
        return self.setting.broker.replace("postgresql://", "postgresql+psycopg://")

    def prepare(self) -> None:
        self._launch()
        DBOS.destroy()

    def send(self, messages: Iterable[Message]) -> None:
        for tag, countdown in messages:
            later = {} if countdown is None else {"delay_seconds": countdown}
            self._client.enqueue({"queue_name": self.setting.queue, "workflow_name": "noop", **later}, tag)

    def call(self) -> None:
        self._client.enqueue({"queue_name": self.setting.queue, "workflow_name": "noop"}, -1.0).get_result()

    def run_workflows(self, n: int, steps: int) -> None:
        self._run_here()
        runs = [DBOS.start_workflow(self._chain, steps) for _ in range(n)]
        assert all(run.get_result() == steps for run in runs)

    def run_fan(self, n: int) -> None:
        self._run_here()
        assert DBOS.start_workflow(self._fan, n).get_result() == n

    def _run_here(self) -> None:
        """This process runs workflows itself, as DBOS has it."""
        if not self._runs_here:
            self._launch()
            self._runs_here = True

    def work(self, pool: str, concurrency: int, first: int) -> None:
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        self._launch()
        stopped.wait()
        DBOS.destroy()

    def _launch(self) -> None:
        DBOS(config={"name": "benchmarks", "system_database_url": self._url, "log_level": "WARNING"})
        marks = self.setting.marks

        @DBOS.workflow(name="noop")
        def noop(tag: float) -> None:
            marks.leave(tag)

        @DBOS.step()
        def one_more(last: int) -> int:
            return last + 1

        @DBOS.workflow(name="chain")
        def chain(steps: int) -> int:
            value = 0
            for _ in range(steps):
                value = one_more(value)
            return value

        @DBOS.workflow(name="fan")
        def fan(width: int) -> int:
            return sum(run.get_result() for run in [DBOS.start_workflow(chain, 1) for _ in range(width)])

        self._chain, self._fan = chain, fan
        DBOS.launch()
        # With a limit of two it would run two a poll, and it polls each second.
        DBOS.register_queue(self.setting.queue)

    def close(self) -> None:
        if self._runs_here:
            DBOS.destroy()
        if "_client" in self.__dict__:
            self._client.destroy()


ENGINE = DBOSEngine
