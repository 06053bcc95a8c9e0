"""An ordinary Celery app. Only its two URLs say that there is no Redis and no RabbitMQ."""

import os
import time

from celery import Celery

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
