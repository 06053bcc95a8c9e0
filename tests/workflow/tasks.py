"""The app and the tasks of the workflow tests."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from celery import Celery, group

from celery_workflow.errors import Permanent, Snooze

app = Celery("workflow_tests", broker="memory://", backend="cache+memory://", set_as_current=False)
app.conf.update(broker_connection_retry_on_startup=True, broker_transport_options={"polling_interval": 0.01})

#: What tasks did, for tests that want to know; `failing` says how often a task shall fail, by its first argument.
told: list[Any] = []
failing: dict[Any, int] = defaultdict(int)


class Planned(Exception):
    """What a task raises because the test wants it."""


@app.task
def mark(*args: Any, **kwargs: Any) -> list[Any]:
    """Everything it was given, so that results show how arguments came about."""
    return [*args, kwargs] if kwargs else list(args)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def double(n: int) -> int:
    return 2 * n


@app.task
def numbers(n: int) -> list[int]:
    return list(range(n))


@app.task
def load_order(order_id: int) -> dict[str, Any]:
    return {"id": order_id, "card": "4711", "total": 120, "lines": ["pen", "ink", "paper"]}


@app.task
def act(what: Any, *args: Any) -> Any:
    """Tell that it was done; fail as often as the test has said."""
    told.append(what)
    if failing[what] > 0:
        failing[what] -= 1
        raise Planned(what)
    return what


@app.task
def boom() -> None:
    raise Planned("boom")


@app.task
def give_up(what: Any) -> None:
    raise Permanent(Planned(what))


@app.task
def snooze_once(what: Any) -> str:
    told.append(what)
    if told.count(what) == 1:
        raise Snooze(60)
    return "rested"


@app.task(autoretry_for=(Exception,), retry_backoff=1, retry_jitter=False)
def retried_for_everything(what: str) -> str:
    told.append(what)
    if told.count(what) > 1:
        return "done"
    if what == "snooze":
        raise Snooze(60)
    if what == "permanent":
        raise Permanent("no use")
    raise Planned(what)


@app.task(bind=True, max_retries=3)
def retry_itself(self: Any, what: Any) -> int:
    told.append((what, self.request.retries))
    if self.request.retries < 2:
        raise self.retry(countdown=30)
    return int(self.request.retries)


@app.task
def make_canvas(n: int) -> Any:
    return group(double.s(i) for i in range(n)) | mark.s()


@app.task(bind=True)
def replace_itself(self: Any, n: int) -> Any:
    raise self.replace(group(double.s(i) for i in range(n)))


@app.task
def send_another() -> str:
    double.delay(21)
    return "sent"


@app.task
def failed_with_id(task_id: str) -> None:
    told.append(("failed", task_id))


@app.task
def failed_with_request(request: Any, exception: BaseException, traceback: Any) -> None:
    told.append((request.id, type(exception).__name__, str(exception)))


@app.task
def hear(*args: Any) -> None:
    told.append(("heard", *args))
