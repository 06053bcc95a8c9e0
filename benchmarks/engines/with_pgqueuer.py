"""pgqueuer: its own asyncio worker, no child processes."""

from __future__ import annotations

import asyncio
import signal
import struct
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import psycopg
from pgqueuer.db import PsycopgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from ..setting import Setting
from . import Engine, Message

__all__ = ["ENGINE"]

TAG = struct.Struct("d")
BATCH = 500


class PgQueuerEngine(Engine):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._loop = asyncio.new_event_loop()
        self._queries = Queries(PsycopgDriver(self._run(psycopg.AsyncConnection.connect(setting.broker, autocommit=True))))

    def prepare(self) -> None:
        self._run(self._queries.install())

    def send(self, messages: Iterable[Message]) -> None:
        self._run(self._send(messages))

    async def _send(self, messages: Iterable[Message]) -> None:
        for tag, countdown in messages:
            await self._queries.enqueue(self.setting.queue, TAG.pack(tag), execute_after=_delay(countdown))

    def send_many(self, n: int, mode: str) -> None:
        if mode != "bulk":
            raise NotImplementedError
        self.fill(n, None)

    def fill(self, n: int, countdown: float | None) -> None:
        for done in range(0, n, BATCH):
            size = min(BATCH, n - done)
            columns = [self.setting.queue] * size, [TAG.pack(0.0)] * size, [0] * size, [_delay(countdown)] * size
            self._run(self._queries.enqueue(*columns))

    def work(self, pool: str, concurrency: int, first: int) -> None:
        self._run(self._work())

    async def _work(self) -> None:
        manager = QueueManager(self._queries)
        marks = self.setting.marks

        @manager.entrypoint(self.setting.queue)
        async def noop(job: Any) -> None:
            marks.leave(TAG.unpack(job.payload)[0])

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
        await manager.run()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)


def _delay(countdown: float | None) -> timedelta | None:
    return None if countdown is None else timedelta(seconds=countdown)


ENGINE = PgQueuerEngine
