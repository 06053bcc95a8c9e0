"""An ordinary Celery app. Only its two URLs say that there is no Redis and no RabbitMQ."""

import os
import time
from datetime import timedelta

from celery import Celery

from celery_workflow import workflow

URL = os.environ.get("DEMO_URL", "sqlqueue+sqlite:///demo/demo.db")

app = Celery("tasks", broker=URL, backend=URL)


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self):
    """Fails the first time, as if a service were down for a moment."""
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    return f"done at try {self.request.retries + 1}"


@app.task
def clock():
    return time.time()


@app.task
def ship(order):
    return f"order {order} is on its way"


@app.task(ignore_result=True)
def tick():
    pass


@workflow(app, name="order", version=1)
def order(w, numbers):
    """Steps are ordinary tasks; what one returns is an argument of the next."""
    cost = w.step(total.s([w.step(add.s(n, n), name=f"price-{n}") for n in numbers]), name="cost")
    # For days, if need be: no worker is held.
    approved = w.wait_for("approved", timeout=timedelta(days=2), after=cost)
    return w.step(ship.s(approved["order"]), name="ship")
