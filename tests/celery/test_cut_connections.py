"""A producer whose connections are cut again and again."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url

from kombu_sqlqueue.errors import OutcomeUnknownError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability

pytestmark = pytest.mark.requires(Capability.LISTEN_NOTIFY)

TASKS = 1000
CUT = text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = :name")


@pytest.fixture
def producer(database: Database) -> Iterator[DatabaseOptions]:
    """The database under test, with connections that the server can tell from all others."""
    url = make_url(database.options.url).update_query_dict({"application_name": f"cut_{uuid.uuid4().hex[:8]}"})
    options = dataclasses.replace(database.options, url=url.render_as_string(hide_password=False))
    yield options
    process_for(options).close()


@pytest.fixture
def cut(database: Database, producer: DatabaseOptions) -> Iterator[Callable[[], int]]:
    """Cuts the producer's connections about every 150 ms; the answer, at the end, is how many."""
    name = make_url(producer.url).query["application_name"]
    stop = threading.Event()
    cuts: list[int] = []

    def cutting() -> None:
        while not stop.wait(0.15):
            cuts.append(database.statement(lambda c: c.execute(CUT, {"name": name}).scalar_one()))

    def end() -> int:
        stop.set()
        thread.join()
        return sum(cuts)

    thread = threading.Thread(target=cutting)
    thread.start()
    yield end
    end()


def test_what_was_sent_is_stored_once_and_what_was_not_at_most_once(
    database: Database, producer: DatabaseOptions, cut: Callable[[], int]
):
    """Each `delay()` that returned left one message, each that raised left one or none."""
    sent, failed = send_many(producer)
    assert cut() > 5
    m = database.tables.message.c
    stored = Counter(dict(database.run(lambda tx: tx.execute(select(m.task_id, func.count()).group_by(m.task_id)).all())))

    assert {stored[task_id] for task_id in sent} == {1}
    assert {stored[task_id] for task_id in failed} <= {0, 1}
    assert len(sent) > TASKS / 2


def send_many(producer: DatabaseOptions) -> tuple[list[str], list[str]]:
    sent, failed = [], []
    with Celery(set_as_current=False, broker=f"sqlqueue+{producer.url}") as app:
        app.conf.broker_transport_options = {"schema": producer.schema}
        for number in range(TASKS):
            try:
                app.send_task("nothing", task_id=str(number))
            except (OperationalError, OutcomeUnknownError):
                failed.append(str(number))
            else:
                sent.append(str(number))
    return sent, failed
