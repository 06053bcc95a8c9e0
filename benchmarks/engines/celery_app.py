"""The app that every Celery peer runs: what differs is in the setting."""

from __future__ import annotations

from collections.abc import Sequence

from celery import Celery

from ..setting import Setting

__all__ = ["app", "next_value", "noop", "total", "value"]

SETTING = Setting.of_this_process()
MARKS = SETTING.marks

app = Celery("benchmarks", broker=SETTING.broker, backend=SETTING.backend)
app.conf.update(
    task_default_queue=SETTING.queue,
    task_ignore_result=True,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
)
app.conf.update(SETTING.conf)


@app.task(name="noop")
def noop(tag: float) -> None:
    MARKS.leave(tag)


@app.task(name="value", ignore_result=False)
def value() -> int:
    return 1


@app.task(name="next_value", ignore_result=False)
def next_value(last: int) -> int:
    return last + 1


@app.task(name="total", ignore_result=False)
def total(values: Sequence[int]) -> int:
    return sum(values)
