"""The app under test: an ordinary Celery app whose settings come from the environment."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from celery import Celery, Task
from celery.exceptions import Reject
from kombu import Queue
from kombu.common import Broadcast

app = Celery("tests", broker=os.environ["TEST_BROKER_URL"], backend=os.environ.get("TEST_RESULT_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)

MARKS = Path(os.environ["TEST_MARKS"])


def mark(text: str) -> None:
    """Record that something ran, in a way that depends on no broker."""
    with MARKS.open("a") as file:
        file.write(f"{time.time():.3f} {os.getpid()} {text}\n")


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def record(text):
    mark(text)


@app.task(bind=True, acks_late=True)
def retry_in_transaction(self, url, table):
    """Retries in a transaction that is rolled back then."""
    if self.request.retries:
        mark("again")
        return "again"
    import sqlalchemy

    from kombu_sqlqueue import in_transaction

    with sqlalchemy.create_engine(url).connect() as connection:
        connection.execute(sqlalchemy.text(f"INSERT INTO {table} VALUES (1)"))
        with in_transaction(connection):
            raise self.retry(countdown=0)


@app.task(bind=True, acks_late=True)
def replace_in_transaction(self, url, table):
    """Is replaced in a transaction that is rolled back then."""
    import sqlalchemy

    from kombu_sqlqueue import in_transaction

    with sqlalchemy.create_engine(url).connect() as connection:
        connection.execute(sqlalchemy.text(f"INSERT INTO {table} VALUES (1)"))
        with in_transaction(connection):
            raise self.replace(echo.s("replaced"))


@app.task
def pass_on(text, queue):
    mark(f"passed on {text}")
    record.apply_async((text,), queue=queue)


@app.task
def echo(value):
    return value


@app.task
def fail(text="failed on purpose"):
    raise ValueError(text)


@app.task(acks_late=True)
def out_of_memory():
    mark("out of memory")
    raise MemoryError


@app.task
def sleep_early(text, seconds):
    mark(f"begin {text}")
    time.sleep(seconds)
    mark(f"end {text}")
    return text


@app.task(acks_late=True)
def sleep_late(text, seconds):
    mark(f"begin {text}")
    time.sleep(seconds)
    mark(f"end {text}")
    return text


@app.task(bind=True, max_retries=3)
def flaky(self: Task, text, failures):
    mark(f"try {text}")
    if self.request.retries < failures:
        raise self.retry(countdown=0.2)
    return self.request.retries


@app.task(bind=True, acks_late=True, max_retries=1)
def sleep_and_retry(self: Task, text, seconds):
    mark(f"try {self.request.retries} of {text}")
    if not self.request.retries:
        time.sleep(seconds)
        raise self.retry(countdown=0)


@app.task(acks_late=True, reject_on_worker_lost=True)
def poison():
    mark("poison")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def kill_own_process_early():
    mark("killed child")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(acks_late=True, max_retries=1, default_retry_delay=1)
def kill_own_process():
    mark("killed child")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, acks_late=True)
def reject(self: Task, requeue):
    mark("reject")
    raise Reject("on purpose", requeue=requeue)


@app.task(bind=True)
def request_facts(self: Task):
    request = self.request
    return {
        "id": request.id,
        "delivery_info": request.delivery_info,
        "headers": request.headers,
        "priority": request.properties.get("priority"),
        "correlation_id": request.correlation_id,
        "stack": sys.getrecursionlimit(),
    }


@app.task
def busy_in_c(seconds):
    """Blocks the thread in code that releases the interpreter, as most C code does."""
    mark("begin busy")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(0.5, max(0.0, end - time.monotonic())))
    mark("end busy")


if os.environ.get("TEST_LATER"):

    @app.task(name="tests.celery.tasks.later")
    def later(text):
        """Known only to workers that were started with it."""
        mark(text)


if os.environ.get("TEST_BROADCAST"):
    app.conf.task_queues = [Queue("celery"), Broadcast("everyone")]


@app.task
def leave():
    """Raises what ends a process."""
    raise SystemExit(1)
