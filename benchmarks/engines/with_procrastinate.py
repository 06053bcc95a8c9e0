"""procrastinate: its own asyncio worker, no child processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from ..setting import Setting
from . import Engine, Message

__all__ = ["ENGINE"]

BATCH = 500


class ProcrastinateEngine(Engine):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._app, self._noop = self._build(SyncPsycopgConnector(conninfo=setting.broker, min_size=1, max_size=2))
        self._app.open()

    def close(self) -> None:
        self._app.close()

    def prepare(self) -> None:
        self._app.schema_manager.apply_schema()

    def send(self, messages: Iterable[Message]) -> None:
        for tag, countdown in messages:
            self._deferrer(countdown).defer(tag=tag)

    def send_many(self, n: int, mode: str) -> None:
        if mode != "bulk":
            raise NotImplementedError
        self.fill(n, None)

    def fill(self, n: int, countdown: float | None) -> None:
        deferrer = self._deferrer(countdown)
        for done in range(0, n, BATCH):
            deferrer.batch_defer(*[{"tag": 0.0}] * min(BATCH, n - done))

    def work(self, pool: str, concurrency: int, first: int) -> None:
        asyncio.run(self._work(concurrency))

    async def _work(self, concurrency: int) -> None:
        app, _ = self._build(PsycopgConnector(conninfo=self.setting.broker, min_size=2, max_size=concurrency + 2))
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency, queues=[self.setting.queue], delete_jobs="always")

    def _deferrer(self, countdown: float | None) -> Any:
        if countdown is None:
            return self._noop
        return self._noop.configure(schedule_at=datetime.now(UTC) + timedelta(seconds=countdown))

    def _build(self, connector: Any) -> tuple[Any, Any]:
        app = App(connector=connector)
        marks = self.setting.marks

        @app.task(name="noop", queue=self.setting.queue)
        async def noop(tag: float) -> None:
            marks.leave(tag)

        return app, noop


ENGINE = ProcrastinateEngine
