"""Tasks of the caller's own transaction, and the workers that run them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from celery import chord
from sqlalchemy import select
from sqlalchemy.engine import make_url

from kombu_sqlqueue import TransactionNotSupportedError, in_transaction
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from .callers import orders
from .workers import Site, eventually


@pytest.fixture
def table(database_options: DatabaseOptions) -> Iterator[str]:
    with orders(database_options) as table:
        yield table


@pytest.fixture
def engine(database_options: DatabaseOptions) -> Iterator[sa.Engine]:
    """An engine of the application's own."""
    engine = sa.create_engine(url_of(database_options))
    yield engine
    engine.dispose()


def url_of(options: DatabaseOptions) -> str:
    url = make_url(options.url)
    return url.set(query={}).render_as_string(hide_password=False)


def order(connection: sa.Connection, table: str, number: int) -> None:
    connection.execute(sa.text(f"INSERT INTO {table} VALUES ({number})"))


def test_workers_wake_on_the_commit(make_site: Callable[..., Site], engine: sa.Engine, table: str):
    """An idle worker that would look by itself only in minutes; the transaction is open for longer than it takes to fall asleep."""
    site = make_site(options={"polling_interval": 100.0 if engine.dialect.name != "mysql" else 1.0})
    site.worker()
    site.send("record", "first")
    eventually(lambda: site.marks("first"))
    with engine.connect() as connection, in_transaction(connection):
        order(connection, table, 1)
        site.send("record", "committed")
        time.sleep(2)
        assert not site.marks("committed")
        connection.commit()
    eventually(lambda: site.marks("committed"), 20)


def test_a_chord_that_was_sent_in_a_transaction_runs(site: Site, engine: sa.Engine, table: str):
    site.worker("-c2")
    with engine.connect() as connection, in_transaction(connection):
        order(connection, table, 1)
        result = chord([site.task("add", each, each) for each in range(5)])(site.task("total"))
        connection.commit()

    assert result.get(timeout=60) == 20


def test_a_retry_does_not_take_part(site: Site, database_options: DatabaseOptions, table: str):
    """Celery has been told that the task will run again, whatever becomes of the transaction. With one writer that cannot be kept
    apart: then the task is set aside, and not lost."""
    site.worker()
    result = site.send("retry_in_transaction", url_of(database_options), table)
    if database_options.url.startswith("sqlite"):
        eventually(site.dead)
        assert [message.task_id for message in site.dead()] == [result.id]
    else:
        assert result.get(timeout=60) == "again"


def test_what_replaces_a_task_does_not_take_part(site: Site, database_options: DatabaseOptions, table: str):
    """Celery takes the task for done, whatever becomes of the transaction. On SQLite, where that cannot be, the task fails."""
    site.worker()
    result = site.send("replace_in_transaction", url_of(database_options), table)
    if database_options.url.startswith("sqlite"):
        with pytest.raises(TransactionNotSupportedError, match="transaction"):
            result.get(timeout=60)
    else:
        assert result.get(timeout=60) == "replaced"


def test_workers_answer_while_a_transaction_is_open(site: Site, engine: sa.Engine, table: str):
    """A command goes out at once. With one writer nobody could answer, and who asks is told so."""
    site.worker()
    with engine.connect() as connection, in_transaction(connection):
        order(connection, table, 1)
        if process_for(site.database).database.has_writers:
            assert site.app.control.ping(timeout=5)
        else:
            with pytest.raises(TransactionNotSupportedError, match="asking workers"):
                site.app.control.ping(timeout=5)


def test_a_revoke_is_part_of_the_transaction(site: Site, engine: sa.Engine, table: str):
    kept, revoked = site.send("record", "kept", countdown=2), site.send("record", "revoked", countdown=2)
    with engine.connect() as connection:
        with in_transaction(connection):
            order(connection, table, 1)
            site.app.control.revoke(kept.id)
            connection.rollback()
        with in_transaction(connection):
            order(connection, table, 1)
            site.app.control.revoke(revoked.id)
            connection.commit()
    site.worker()

    eventually(lambda: site.marks("kept"))
    eventually(lambda: revoked.state == "REVOKED")
    assert not site.marks("revoked")


#: Sends orders until it is killed, and another one then, so many times.
SENDERS = """
import itertools, os, signal, sys, time
import sqlalchemy as sa
from celery import Celery
from kombu_sqlqueue import in_transaction

broker, schema, url, table, kills = sys.argv[1:]

def send_orders(first):
    app = Celery(broker=broker)
    app.conf.broker_transport_options = {"schema": schema or None}
    engine = sa.create_engine(url)
    for number in itertools.count(first):
        with engine.begin() as connection, in_transaction(connection):
            connection.execute(sa.text(f"INSERT INTO {table} VALUES ({number})"))
            app.send_task("order", task_id=str(number))
        if number == first:
            os.write(ready[1], b"!")

for nth in range(int(kills)):
    ready = os.pipe()
    child = os.fork()
    if not child:
        send_orders(nth * 1_000_000 + 1)
    os.read(ready[0], 1)
    time.sleep(0.1 * nth / int(kills))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("kills", [12, pytest.param(60, marks=pytest.mark.soak)])
def test_a_killed_sender_leaves_both_the_row_and_its_task_or_neither(
    database_options: DatabaseOptions, engine: sa.Engine, table: str, kills: int
):
    """kill -9 at as many moments, each a little later after the first order."""
    process = process_for(database_options)
    message = process.database.tables.message.c
    arguments = (f"sqlqueue+{database_options.url}", database_options.schema or "", url_of(database_options), table)
    subprocess.run([sys.executable, "-c", SENDERS, *arguments, str(kills)], check=True, timeout=120)

    def rows() -> list[int]:
        with engine.connect() as connection:
            return sorted(connection.scalars(sa.text(f"SELECT id FROM {table}")))

    def tasks() -> list[int]:
        sent = select(message.task_id).where(message.task == "order")
        return process.database.statement(lambda tx: sorted(map(int, tx.scalars(sent))))

    # The last commit may still be under way when its sender is gone.
    eventually(lambda: rows() == tasks(), 10)
    assert {number // 1_000_000 for number in tasks()} == set(range(kills))
    assert len(tasks()) > 2 * kills
    process.messages.purge("celery")
