"""Ordinary tasks, and a canvas of them as it may have been for years. Only the last line is new."""

import os

from celery import Celery, chain, group

from celery_workflow import durable

URL = os.environ.get("EXAMPLE_URL", "sqlqueue+sqlite:///nightly_etl.db")

app = Celery("nightly_etl", broker=URL, backend=URL)

#: What the source has tonight; only the first task knows.
SOURCE = {"customers": 120, "orders": 3400, "payments": 2900, "visits": 51_000}


@app.task
def extract():
    return sorted(SOURCE)


@app.task(bind=True)
def load_all(self, tables):
    """How many parts there are is known only here: the task puts a group in its place."""
    return self.replace(group(load.s(table) for table in tables))


@app.task(bind=True, autoretry_for=(ConnectionError,), default_retry_delay=1)
def load(self, table):
    if table == "visits" and not self.request.retries:
        raise ConnectionError("the warehouse is busy")
    return [table, SOURCE[table]]


@app.task
def report(loaded):
    return f"{sum(count for _, count in loaded)} rows in {len(loaded)} tables"


canvas = chain(extract.s(), load_all.s(), report.s())

nightly = durable(canvas, name="nightly")
