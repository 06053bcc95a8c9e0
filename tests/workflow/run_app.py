"""The app whose workers run the steps of these tests; its settings come from the environment, as those of `tests.celery.tasks`."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sqlalchemy
from celery import Celery, chain, chord, group
from celery.exceptions import Ignore, Reject
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from celery_workflow import Permanent, Snooze, Workflows, current, workflow

__all__ = ["CardDeclined", "define", "mark"]


def mark(text: str) -> None:
    """Record that something ran, in a way that depends on no broker and no database."""
    with Path(os.environ["TEST_MARKS"]).open("a") as file:
        file.write(f"{time.time():.3f} {os.getpid()} {text}\n")


def marked(text: str) -> int:
    """How often it was recorded."""
    path = Path(os.environ["TEST_MARKS"])
    return sum(line.split(" ", 2)[2] == text for line in path.read_text().splitlines()) if path.exists() else 0


class CardDeclined(Exception):
    """Cannot be pickled, as many exceptions of applications cannot."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"{code}: {said}")


def define(app: Celery) -> SimpleNamespace:
    """Register the tasks and workflows under names of their own: in workers, and in the app that a test starts runs with."""
    tasks = SimpleNamespace(app=app)
    for add_some in (_plain, _ending, _retrying, _dying, _asking, _booking, _workflows):
        add_some(app, tasks)
    return tasks


def _plain(app: Celery, tasks: SimpleNamespace) -> None:
    @app.task(name="add", shared=False)
    def add(x: Any, y: Any) -> Any:
        return x + y

    @app.task(name="echo", shared=False)
    def echo(value: Any = None, *_: Any) -> Any:
        return value

    @app.task(name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="note", shared=False)
    def note(text: Any, *_: Any) -> Any:
        mark(str(text))
        return text

    @app.task(name="quiet", ignore_result=True, shared=False)
    def quiet(text: str) -> str:
        mark(text)
        return text

    @app.task(name="slow", shared=False)
    def slow(text: str, seconds: float, *_: Any) -> str:
        mark(f"begin {text}")
        time.sleep(seconds)
        mark(f"end {text}")
        return text

    @app.task(name="slow_late", acks_late=True, shared=False)
    def slow_late(text: str, seconds: float, *_: Any) -> str:
        mark(f"begin {text}")
        time.sleep(seconds)
        mark(f"end {text}")
        return text

    @app.task(name="gated", shared=False)
    def gated(text: str, gate: str) -> str:
        """Runs until the file is there."""
        mark(f"begin {text}")
        while not Path(gate).exists():
            time.sleep(0.02)
        mark(f"end {text}")
        return text

    tasks.add, tasks.echo, tasks.total, tasks.note, tasks.quiet = add, echo, total, note, quiet
    tasks.slow, tasks.slow_late, tasks.gated = slow, slow_late, gated


def _ending(app: Celery, tasks: SimpleNamespace) -> None:
    """Tasks that end in all the ways a task can."""

    @app.task(name="fail", shared=False)
    def fail(text: str = "on purpose", *_: Any) -> None:
        mark(f"fail {text}")
        raise ValueError(text)

    @app.task(name="broken", shared=False)
    def broken(text: str, mended: str, *_: Any) -> str:
        """Fails until the file is there."""
        mark(f"broken {text}")
        if not Path(mended).exists():
            raise ValueError(text)
        return text

    @app.task(name="decline", shared=False)
    def decline() -> None:
        mark("decline")
        raise CardDeclined(51, "no money")

    @app.task(name="ignore", shared=False)
    def ignore() -> None:
        raise Ignore

    @app.task(name="reject", shared=False)
    def reject(requeue: bool) -> None:
        mark("reject")
        raise Reject("on purpose", requeue=requeue)

    @app.task(name="reject_once", acks_late=True, shared=False)
    def reject_once() -> str:
        mark("reject once")
        if marked("reject once") == 1:
            raise Reject("not here", requeue=True)
        return "taken"

    @app.task(name="reject_late", acks_late=True, shared=False)
    def reject_late(requeue: bool) -> None:
        mark("reject late")
        raise Reject("on purpose", requeue=requeue)

    @app.task(name="unsayable", shared=False)
    def unsayable() -> Any:
        return {1, object()}

    @app.task(name="exits", shared=False)
    def exits() -> None:
        mark("exits")
        raise SystemExit(3)

    @app.task(name="permanent", shared=False)
    def permanent() -> None:
        mark("permanent")
        raise Permanent(CardDeclined(51, "no money"))

    @app.task(name="permanent_auto", autoretry_for=(Exception,), default_retry_delay=0, max_retries=5, shared=False)
    def permanent_auto() -> None:
        mark("permanent auto")
        raise Permanent("hopeless")

    @app.task(name="replace", bind=True, shared=False)
    def replace(self: Any, kind: str) -> None:
        raise self.replace(canvas_of(kind))

    @app.task(name="expand", shared=False)
    def expand(kind: str) -> Any:
        return canvas_of(kind)

    def canvas_of(kind: str) -> Any:
        add, echo, total = tasks.add, tasks.echo, tasks.total
        return {
            "single": lambda: add.s(1, 2),
            "chain": lambda: chain(add.s(1, 2), add.s(10)),
            "group": lambda: group(add.s(n, n) for n in range(3)),
            "chord": lambda: chord([add.s(n, n) for n in range(3)], total.s()),
            "failing": lambda: chain(tasks.fail.si("inside"), echo.s()),
            "nothing": lambda: 7,
        }[kind]()

    tasks.fail, tasks.decline, tasks.ignore, tasks.reject = fail, decline, ignore, reject
    tasks.broken = broken
    tasks.reject_once, tasks.reject_late, tasks.unsayable, tasks.exits = reject_once, reject_late, unsayable, exits
    tasks.permanent, tasks.permanent_auto, tasks.replace, tasks.expand = permanent, permanent_auto, replace, expand


def _retrying(app: Celery, tasks: SimpleNamespace) -> None:
    @app.task(name="flaky", shared=False)
    def flaky(text: str, failures: int, *_: Any) -> str:
        """Fails as often by the count of its step's attempts."""
        mark(f"try {text}")
        if current().attempt <= failures:
            raise ValueError(f"attempt {current().attempt}")
        return text

    @app.task(name="autoretried", bind=True, autoretry_for=(ValueError,), default_retry_delay=0, max_retries=3, shared=False)
    def autoretried(self: Any, failures: int) -> int:
        if self.request.retries < failures:
            raise ValueError(f"retry {self.request.retries}")
        return int(self.request.retries)

    @app.task(name="retried", bind=True, max_retries=5, shared=False)
    def retried(self: Any, x: int, y: int = 0) -> list[int]:
        if self.request.retries < 2:
            raise self.retry(args=(x + 1,), kwargs={"y": y + 10}, countdown=0.05)
        return [x, y, self.request.retries]

    @app.task(name="retried_quietly", bind=True, ignore_result=True, max_retries=5, shared=False)
    def retried_quietly(self: Any, x: int, y: int = 0) -> None:
        mark(f"quietly {x} {y} {self.request.retries}")
        if self.request.retries < 2:
            raise self.retry(args=(x + 1,), kwargs={"y": y + 10}, countdown=0)

    @app.task(name="spent", bind=True, max_retries=2, default_retry_delay=0, shared=False)
    def spent(self: Any) -> None:
        mark("spent")
        raise self.retry(exc=KeyError("spent"))

    @app.task(name="retried_later", bind=True, shared=False)
    def retried_later(self: Any, text: str) -> None:
        mark(f"later {text}")
        raise self.retry(countdown=300)

    @app.task(name="snoozes", shared=False)
    def snoozes(times: int) -> int:
        if current().attempt <= times:
            raise Snooze(0.05)
        return current().attempt

    @app.task(name="snoozes_auto", autoretry_for=(Exception,), max_retries=0, shared=False)
    def snoozes_auto(times: int) -> int:
        if current().attempt <= times:
            raise Snooze(0.05)
        return current().attempt

    tasks.flaky, tasks.autoretried, tasks.retried, tasks.retried_quietly = flaky, autoretried, retried, retried_quietly
    tasks.spent, tasks.retried_later, tasks.snoozes, tasks.snoozes_auto = spent, retried_later, snoozes, snoozes_auto


def _dying(app: Celery, tasks: SimpleNamespace) -> None:
    def die(text: str, times: int) -> str:
        mark(text)
        if marked(text) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    tasks.die = app.task(name="die", shared=False)(die)
    tasks.die_late = app.task(name="die_late", acks_late=True, shared=False)(die)

    @app.task(name="memoised", shared=False)
    def memoised(times: int) -> list[Any]:
        """Dies after its memo, so many times."""
        number = current().memo("drawn", lambda: mark("drawn") or marked("drawn"))
        mark("after memo")
        if marked("after memo") <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return [number, current().memo("again", lambda: [1, {"a": None}]), current().attempt]

    tasks.memoised = memoised


def _asking(app: Celery, tasks: SimpleNamespace) -> None:
    def facts(self: Any, *_: Any) -> dict[str, Any]:
        request = self.request
        return {
            "id": request.id,
            "root_id": request.root_id,
            "parent_id": request.parent_id,
            "priority": request.properties.get("priority"),
            "queue": request.delivery_info["routing_key"],
            "timelimit": request.timelimit,
            "colour": request.get("colour"),
            "stamps": request.stamps,
        }

    own = {"shared": False, "queue": "special", "priority": 7, "time_limit": 40, "soft_time_limit": 30}
    tasks.facts = app.task(name="facts", bind=True, shared=False)(facts)
    tasks.facts_with_options = app.task(name="facts_with_options", bind=True, **own)(facts)

    @app.task(name="about", shared=False)
    def about() -> dict[str, Any]:
        step = current()
        return {
            "run": step.run_id,
            "workflow": step.workflow,
            "step": step.step,
            "index": step.index,
            "attempt": step.attempt,
            "max_attempts": step.max_attempts,
            "epoch": step.epoch,
            "version": step.version,
            "labels": dict(step.labels),
            "tenant": step.tenant,
        }

    @app.task(name="about_item", shared=False)
    def about_item(item: Any) -> int | None:
        return current().index

    tasks.about, tasks.about_item = about, about_item


def _booking(app: Celery, tasks: SimpleNamespace) -> None:
    """Tasks that end in a transaction of their own."""

    def insert(session: Any, table: str, owner: str) -> None:
        statement = f"INSERT INTO {table} VALUES ({random.randrange(2**31)}, '{owner}')"
        session.execute(sqlalchemy.text(statement) if hasattr(session, "in_transaction") else statement)

    @contextmanager
    def begun(url: str) -> Iterator[Any]:
        engine = sqlalchemy.create_engine(url, poolclass=NullPool)
        with Session(engine) as session, session.begin():
            yield session

    @app.task(name="book", shared=False)
    def book(url: str, table: str, owner: str, session: str, *_: Any) -> str:
        engine = sqlalchemy.create_engine(url, poolclass=NullPool)
        with ExitStack() as stack:
            opened: Any
            if session == "sessionmaker":
                opened = sessionmaker(engine)
            elif session == "session":
                opened = stack.enter_context(Session(engine))
                stack.enter_context(opened.begin())
            elif session == "connection":
                opened = stack.enter_context(engine.begin())
            else:
                import psycopg

                opened = stack.enter_context(psycopg.connect(url.replace("+psycopg", "")))
            with current().transaction(opened) as given:
                insert(given, table, owner)
                current().complete({"booked": owner})
        return "not this"

    @app.task(name="book_badly", shared=False)
    def book_badly(url: str, table: str, owner: str, how: str) -> str:
        mark(f"{owner} books")
        first = marked(f"{owner} books") == 1
        with begun(url) as session, current().transaction(session):
            insert(session, table, owner)
            if how != "forget":
                current().complete(owner)
            if how == "twice":
                current().complete(owner)
            if how == "raise" and first:
                raise ValueError("first time")
            if how == "die" and first:
                os.kill(os.getpid(), signal.SIGKILL)
        if how == "raise after":
            raise ValueError("too late")
        return "not this"

    @app.task(name="book_late", shared=False)
    def book_late(url: str, table: str, owner: str, gate: str) -> None:
        mark(f"{owner} waits")
        while not Path(gate).exists():
            time.sleep(0.02)
        try:
            with begun(url) as session, current().transaction(session):
                insert(session, table, owner)
                current().complete(owner)
        except Exception:
            mark(f"{owner} failed")
            raise

    @app.task(name="complete_alone", shared=False)
    def complete_alone() -> None:
        current().complete(1)

    tasks.book, tasks.book_badly, tasks.book_late, tasks.complete_alone = book, book_badly, book_late, complete_alone


def _workflows(app: Celery, tasks: SimpleNamespace) -> None:
    tasks.flows = Workflows(app)

    @workflow(app, name="double_sum")
    def double_sum(w: Any, x: int, y: int = 0) -> Any:
        first = w.step(tasks.add.s(x, y))
        return w.step(tasks.add.s(first, first))

    @workflow(app, name="waiting")
    def waiting(w: Any, signal: str) -> Any:
        return w.wait_for(signal, timeout=None)

    @app.task(name="nap", shared=False)
    def nap(name: str) -> Any:
        """What a step that expands is to become: a run that waits for a signal."""
        return waiting.task(signal=name)

    @app.task(name="told", shared=False)
    def told(facts: dict[str, Any]) -> None:
        mark(f"told {facts['reason']}")

    @workflow(app, name="parent")
    def parent(w: Any, x: int) -> Any:
        inner = w.sub(double_sum, x=x, y=1)
        return w.step(tasks.echo.s(inner))

    @workflow(app, name="marking")
    def marking(w: Any, text: str) -> Any:
        return w.step(tasks.note.s(text))

    tasks.double_sum, tasks.parent, tasks.marking = double_sum, parent, marking
    tasks.waiting, tasks.nap, tasks.told = waiting, nap, told


if "TEST_BROKER_URL" in os.environ:
    app = Celery("runs", broker=os.environ["TEST_BROKER_URL"], backend=os.environ.get("TEST_RESULT_BACKEND"))
    app.conf.update(
        broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        **json.loads(os.environ.get("TEST_CONF", "{}")),
    )
    define(app)
