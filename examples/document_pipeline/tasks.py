"""A long step that pays for each page, and remembers what it has paid for."""

import os
import pathlib
import time

from celery import Celery

from celery_workflow import current, workflow

URL = os.environ.get("EXAMPLE_URL", "sqlqueue+sqlite:///document_pipeline.db")
HOME = pathlib.Path(os.environ.get("EXAMPLE_HOME", "."))

app = Celery("document_pipeline", broker=URL, backend=URL)
# After so many seconds without a sign of life a task is another worker's. The default is 30.
app.conf.broker_transport_options = {"lease_for": 3}


def note(text):
    """Stands for what the outside world sees; the script reads it."""
    with (HOME / "notes").open("a") as file:
        file.write(f"{text}\n")


def ask_the_model(page):
    """Takes a while, costs money."""
    time.sleep(0.1)
    note(f"paid for {page}")
    return page.upper()


@app.task
def fetch(document):
    return [f"{document}, page {number}" for number in range(1, 7)]


@app.task
def summarise(pages):
    summaries = []
    for page in pages:
        summaries.append(current().memo(page, lambda page=page: ask_the_model(page)))
        note(f"read {page}")
        time.sleep(0.5)
    return summaries


@app.task
def publish(summaries):
    return f"{len(summaries)} pages, the last is {summaries[-1]!r}"


@workflow(app, name="documents.summarise", version=1)
def pipeline(w, document):
    pages = w.step(fetch.s(document), name="fetch")
    summaries = w.step(summarise.s(pages), name="summarise")
    return w.step(publish.s(summaries), name="publish")
