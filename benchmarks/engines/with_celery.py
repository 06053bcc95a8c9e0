"""Celery with any broker."""

from __future__ import annotations

import os
from collections.abc import Iterable

from celery import chain, chord, group
from celery.signals import worker_ready

import kombu_sqlqueue
from celery_workflow import durable
from celery_workflow.home import Home
from kombu_sqlqueue.sql.migrate import upgrade

from . import Engine, Message
from .celery_app import app, next_value, noop, total, value
from .filling import fill

__all__ = ["ENGINE", "CeleryEngine"]

#: Seconds to wait for a result.
PATIENCE = 120
#: How many messages one call of `bulk_publish` gets.
BATCH = 500


class CeleryEngine(Engine):
    def prepare(self) -> None:
        """Kombu's sqla makes its tables at first use, which must not be that of several workers at once."""
        if self.setting.broker.startswith("sqlqueue"):
            home = Home(app)
            upgrade(home.database)
            upgrade(home.database, home.line)
            home.database.dispose()
        with app.connection_for_write() as connection:
            app.amqp.queues[self.setting.queue].bind(connection.default_channel).declare()

    def send(self, messages: Iterable[Message]) -> None:
        for tag, countdown in messages:
            noop.apply_async((tag,), countdown=countdown)

    def send_many(self, n: int, mode: str) -> None:
        if mode == "group":
            group(noop.s(0.0) for _ in range(n)).apply_async()
            return
        bulk_publish = getattr(kombu_sqlqueue, "bulk_publish", None)
        if bulk_publish is None or not self.setting.broker.startswith("sqlqueue"):
            raise NotImplementedError
        for done in range(0, n, BATCH):
            bulk_publish([noop.s(0.0) for _ in range(min(BATCH, n - done))])

    def fill(self, n: int, countdown: float | None) -> None:
        fill(app, lambda queue: noop.apply_async((0.0,), countdown=countdown, queue=queue).id, n)

    def call(self) -> None:
        assert value.delay().get(timeout=PATIENCE) == 1

    def call_group(self, n: int) -> None:
        assert sum(group(value.s() for _ in range(n)).apply_async().get(timeout=PATIENCE)) == n

    def call_chord(self, n: int) -> None:
        assert chord([value.s() for _ in range(n)])(total.s()).get(timeout=PATIENCE) == n

    @property
    def _is_ours(self) -> bool:
        return self.setting.broker.startswith("sqlqueue")

    def run_workflows(self, n: int, steps: int) -> None:
        canvas = chain(value.s(), *(next_value.s() for _ in range(steps - 1)))
        if self._is_ours:
            flow = durable(canvas, app=app)
            runs = [flow.start() for _ in range(n)]
            assert all(run.result(PATIENCE) == steps for run in runs)
        else:
            results = [canvas.apply_async() for _ in range(n)]
            assert all(result.get(timeout=PATIENCE) == steps for result in results)

    def run_fan(self, n: int) -> None:
        canvas = chord([value.s() for _ in range(n)], total.s())
        done = (
            durable(canvas, app=app).start().result(PATIENCE)
            if self._is_ours
            else canvas.apply_async().get(timeout=PATIENCE)
        )
        assert done == n

    def work(self, pool: str, concurrency: int, first: int) -> None:
        self.send((0.0, None) for _ in range(first))
        worker_ready.connect(lambda **_: self.setting.report_ready(), weak=False)
        name = f"{self.setting.queue}_{os.getpid()}@%h"
        app.worker_main(["worker", "-P", pool, "-c", str(concurrency), "-l", "WARNING", "-n", name])

    def watch(self, port: int) -> None:
        app.start(["flower", "--address=127.0.0.1", f"--port={port}"])


ENGINE = CeleryEngine
