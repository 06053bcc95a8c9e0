"""More tasks of the app under test: those that canvases are made of."""

from __future__ import annotations

import os
import signal
import threading
import time

from celery import Task, chain, chord, group, signals

from .tasks import MARKS, app, echo, fail, mark, total


@app.task
def plus(value, more):
    return value + more


@app.task
def slow_echo(value, seconds):
    time.sleep(seconds)
    return value


@app.task
def body(values):
    mark(f"body {values}")
    return values


@app.task(ignore_result=True)
def unkept(value):
    return value


@app.task
def unpackable():
    return {1, 2}


@app.task
def errback(request, exc, traceback):
    mark(f"errback {type(exc).__name__}: {exc}")


@app.task
def old_errback(task_id):
    mark(f"old errback {task_id}")


@app.task(bind=True)
def replaced(self: Task, how):
    """Puts something else in its place that returns 5, or a list."""
    by = {
        "task": lambda: echo.si(5),
        "chain": lambda: chain(echo.si(2), plus.s(3)),
        "group": lambda: group(echo.si(2), echo.si(3)),
        "chord": lambda: chord([echo.si(2), echo.si(3)], total.s()),
        "bad chord": lambda: chord([fail.si(), echo.si(3)], total.s()),
    }
    return self.replace(by[how]())


@app.task(bind=True)
def adding(self: Task, value):
    """Adds two more tasks to its chord."""
    for more in (value + 1, value + 2):
        self.add_to_chord(echo.si(more))
    return value


@app.task(acks_late=True, reject_on_worker_lost=True)
def part(value):
    mark(f"part {value}")
    return value


@app.task
def fragile_body(values):
    mark(f"fragile body {values}")
    return values


def die_once(moment: str):
    """Kill this worker, parent and all, when the body of a chord is sent for the first time."""

    def kill(sender=None, **kwargs):
        flag = MARKS.with_name(f"died {moment}")
        if sender == fragile_body.name and os.environ.get("TEST_DIES") == moment and not flag.exists():
            flag.touch()
            os.killpg(os.getpgid(0), signal.SIGKILL)

    return kill


signals.before_task_publish.connect(die_once("before"), weak=False)
signals.after_task_publish.connect(die_once("after"), weak=False)


@app.task(bind=True)
def lineage(self: Task, before=()):
    """Adds its own id, its parent's and its root's to what came before."""
    request = self.request
    return [*before, [request.id, request.parent_id, request.root_id]]


@app.task(bind=True, max_retries=2)
def stamped(self: Task, *ignored, failures=0):
    """Returns its stamps, after as many retries as it is told."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return {name: self.request.stamps.get(name) for name in self.request.stamped_headers or []}


@app.task(bind=True, max_retries=1)
def facts_after_retry(self: Task):
    """What is known of the message after a retry."""
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    request = self.request
    return {"headers": request.headers, "priority": request.delivery_info["priority"], "retries": request.retries}


class Unpackable(Exception):
    """No serializer can bring it back: it holds a lock and wants more arguments than it has."""

    def __init__(self, one, two):
        super().__init__(one)
        self.lock = threading.Lock()


@app.task
def fail_unpackably():
    raise Unpackable("cannot", "travel")


@app.task(bind=True, max_retries=1)
def retry_unpackably(self: Task):
    raise self.retry(exc=Unpackable("cannot", "travel"), countdown=0.1)
