"""Tasks sent inside Django's atomic(), where that is said each time and where it is said once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from celery import Celery, group
from sqlalchemy import select
from sqlalchemy.engine import URL, make_url

from kombu_sqlqueue import TransactionNotSupportedError, in_transaction
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from .callers import orders

django = pytest.importorskip("django")

Seen = Callable[[], tuple[list[str], list[int]]]


@pytest.fixture
def alias(database_name: str, database_options: DatabaseOptions) -> Iterator[str]:
    """The name of the database under test in Django's settings."""
    from django.conf import settings
    from django.db import connections

    if database_name == "mariadb":
        pytest.importorskip("MySQLdb")
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    alias = f"test_{uuid.uuid4().hex[:8]}"
    connections.databases[alias] = {**connections.databases["default"], **django_settings(make_url(database_options.url))}
    yield alias
    connections[alias].close()
    del connections[alias], connections.databases[alias]


def django_settings(url: URL) -> dict[str, Any]:
    engine = {"sqlite": "sqlite3", "postgresql": "postgresql"}.get(url.get_backend_name(), "mysql")
    place = {"NAME": url.database, "USER": url.username or "", "PASSWORD": url.password or ""}
    return {"ENGINE": f"django.db.backends.{engine}", **place, "HOST": url.host or "", "PORT": url.port or ""}


@pytest.fixture
def table(database_options: DatabaseOptions) -> Iterator[str]:
    with orders(database_options) as table:
        yield table


@pytest.fixture(params=["said each time", "said once"])
def sending(request: pytest.FixtureRequest, alias: str) -> Callable[[], AbstractContextManager[None]]:
    """What an app writes around its sending: something, or nothing."""
    from django.db import connections

    return nullcontext if request.param == "said once" else lambda: in_transaction(connections[alias])


@pytest.fixture
def app(request: pytest.FixtureRequest, database_options: DatabaseOptions, alias: str) -> Iterator[Celery]:
    url = f"sqlqueue+{database_options.url}"
    said_once = "said once" in str(request.node.callspec.params.values()) or "sending" not in request.fixturenames
    options = {"schema": database_options.schema, "django_alias": alias if said_once else None}
    with Celery("tests", set_as_current=False, broker=url, backend=url) as app:
        app.conf.update(broker_transport_options=options, task_default_queue=f"q{uuid.uuid4().hex[:8]}")
        yield app
        with app.connection_for_write() as connection:
            process = connection.transport.process
    process.messages.purge(app.conf.task_default_queue)
    process.close()


@pytest.fixture
def seen(app: Celery, database_options: DatabaseOptions, table: str) -> Seen:
    """The tasks that others see, and the orders."""
    database = process_for(database_options).database
    m = database.tables.message.c
    waiting = select(m.task).where(m.queue == app.conf.task_default_queue).order_by(m.position)

    def look() -> tuple[list[str], list[int]]:
        tasks = list(database.statement(lambda tx: tx.scalars(waiting).all()))
        rows = database.statement(lambda tx: tx.exec_driver_sql(f"SELECT id FROM {table} ORDER BY id").all())
        return tasks, [row[0] for row in rows]

    return look


@pytest.fixture
def order(alias: str, table: str) -> Callable[[int], None]:
    from django.db import connections

    def insert(number: int) -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES ({number})")

    return insert


def test_a_task_goes_with_the_block(app: Celery, alias: str, seen: Seen, order: Any, sending: Any):
    from django.db import transaction

    with transaction.atomic(using=alias):
        order(1)
        with sending():
            app.send_task("ship")
        inside = seen()
    with transaction.atomic(using=alias):
        order(2)
        with sending():
            app.send_task("never")
        transaction.set_rollback(True, using=alias)

    assert inside == ([], [])
    assert seen() == (["ship"], [1])


def test_an_inner_block_that_fails_takes_its_tasks_back(app: Celery, alias: str, seen: Seen, order: Any, sending: Any):
    from django.db import transaction

    with transaction.atomic(using=alias):
        order(1)
        with sending():
            app.send_task("outer")
        with transaction.atomic(using=alias), sending():
            order(2)
            app.send_task("inner")
            transaction.set_rollback(True, using=alias)
        with sending():
            group(app.signature("one"), app.signature("two")).delay()

    assert seen() == (["outer", "one", "two"], [1])


def test_on_commit_works_as_ever(app: Celery, alias: str, seen: Seen, order: Any, sending: Any):
    from django.db import transaction

    with transaction.atomic(using=alias):
        order(1)
        transaction.on_commit(lambda: app.send_task("later"), using=alias)
        with sending():
            app.send_task("within")

    assert seen() == (["within", "later"], [1])


def test_who_waits_inside_the_block_is_told_so(app: Celery, alias: str, order: Any, sending: Any):
    """Also in the block after one that was rolled back."""
    from django.db import transaction

    for _ in range(2):
        with transaction.atomic(using=alias), sending():
            order(1)
            result = app.send_task("ship")
            with pytest.raises(RuntimeError, match="sent in one that is still open"):
                result.get(timeout=5)
            transaction.set_rollback(True, using=alias)


def test_outside_of_a_block_a_task_goes_out_at_once(app: Celery, seen: Seen):
    app.send_task("ship")

    assert seen()[0] == ["ship"]


def test_a_result_of_an_earlier_block_may_be_waited_for(app: Celery, alias: str):
    from celery.exceptions import TimeoutError as CeleryTimeoutError
    from django.db import transaction

    with transaction.atomic(using=alias):
        result = app.send_task("ship")
    with transaction.atomic(using=alias):
        app.send_task("another")
        with pytest.raises(CeleryTimeoutError):
            result.get(timeout=0.1)


def test_another_thread_is_in_no_block(app: Celery, alias: str, seen: Seen):
    from django.db import transaction

    with transaction.atomic(using=alias):
        thread = threading.Thread(target=lambda: app.send_task("ship"))
        thread.start()
        thread.join()
        assert seen()[0] == ["ship"]


def test_without_a_block_there_is_nothing_to_take_part_in(alias: str):
    """Django commits each statement then."""
    from django.db import connections

    with pytest.raises(TransactionNotSupportedError, match="autocommit"), in_transaction(connections[alias]):
        pass
