"""The app that the beats and workers of these tests run; its settings come from the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.schedules import crontab

app = Celery("beaten", broker=os.environ["TEST_BROKER_URL"], backend=os.environ["TEST_BROKER_URL"])
app.conf.update(json.loads(os.environ["TEST_CONF"]))


@app.task(name="mark")
def mark(text: str = "ran") -> None:
    """Leave a mark in a file."""
    with Path(os.environ["TEST_MARKS"]).open("a") as file:
        file.write(f"{text}\n")


@app.on_after_configure.connect
def add_more(sender: Celery, **_: Any) -> None:
    """As the documentation of Celery has it."""
    if os.environ.get("TEST_PERIODIC"):
        sender.add_periodic_task(1.0, mark.s("periodic"), name="periodic")
        sender.add_periodic_task(crontab(hour=4, minute=0), mark.s("nightly"), name="nightly")
