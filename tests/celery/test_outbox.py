"""The outbox: tasks for Redis or RabbitMQ that are sent in a transaction of the app's database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, group
from celery.app.amqp import AMQP
from kombu import Connection
from sqlalchemy import create_engine, text, update

from kombu_sqlqueue import bulk_publish
from kombu_sqlqueue.errors import ConfigurationError, MessageTooBigError, TransactionNotSupportedError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.outbox import outbox_options
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.transactions import in_transaction

from .outboxes import OutboxSite, arguments, record
from .workers import eventually

MakeSite = Callable[..., OutboxSite]


@pytest.fixture
def site(make_outbox_site: MakeSite) -> OutboxSite:
    return make_outbox_site("redis")


def test_what_is_committed_runs_and_what_is_rolled_back_never_did(site: OutboxSite):
    site.worker("-Q", site.queue)
    site.relay()
    with site.engine.connect() as connection:
        with connection.begin(), in_transaction(connection):
            record(site, "committed")
        transaction = connection.begin()
        with in_transaction(connection):
            record(site, "rolled back")
        transaction.rollback()
        with connection.begin(), in_transaction(connection):
            record(site, "around the savepoint")
            savepoint = connection.begin_nested()
            record(site, "in the savepoint")
            savepoint.rollback()

    eventually(lambda: len(site.marks()) == 2)
    assert site.marks() == ["committed", "around the savepoint"]
    eventually(lambda: site.left() == 0)


def test_nothing_leaves_before_the_commit(site: OutboxSite):
    with site.engine.begin() as connection, in_transaction(connection):
        result = site.send("record", "x")
        assert result.id
        if process_for(site.database).database.has_writers:
            site.relay_all()
            assert list(site.drain()) == []
    site.relay_all()

    assert [message.headers["id"] for message in site.drain()] == [result.id]


def test_outside_of_in_transaction_tasks_go_to_the_broker_at_once(site: OutboxSite):
    with site.engine.begin():
        record(site, "x")

    assert arguments(site.drain()) == ["x"]
    assert site.left() == 0


def test_an_app_without_an_outbox_is_told_how_to_get_one(site: OutboxSite):
    site.app.conf.sqlqueue_outbox = None
    with (
        site.engine.begin() as connection,
        in_transaction(connection),
        pytest.raises(TransactionNotSupportedError, match="sqlqueue_outbox"),
    ):
        record(site, "x")

    assert list(site.drain()) == []


def test_an_outbox_elsewhere_than_the_transaction_is_refused(site: OutboxSite, tmp_path: Path):
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    with (
        other.begin() as connection,
        in_transaction(connection),
        pytest.raises(TransactionNotSupportedError, match="outbox"),
    ):
        record(site, "x")

    assert site.left() == 0


def test_what_is_sent_to_another_broker_than_the_apps_is_refused(site: OutboxSite):
    """A relay would bring it to the app's."""
    with (
        Connection("memory://elsewhere") as elsewhere,
        site.engine.begin() as connection,
        in_transaction(connection),
        pytest.raises(TransactionNotSupportedError, match="outside of in_transaction"),
    ):
        record(site, "x", connection=elsewhere)


def test_a_producer_of_the_app_that_is_passed_on_does_not_go_round_the_outbox(site: OutboxSite):
    with site.app.producer_pool.acquire(block=True) as producer:
        transaction = (connection := site.engine.connect()).begin()
        with in_transaction(connection):
            record(site, "x", producer=producer)
        transaction.rollback()
        connection.close()

    assert list(site.drain()) == []
    assert site.left() == 0


def test_a_group_is_stored_or_rolled_back_whole(site: OutboxSite):
    tasks = group(site.task("record", str(number)) for number in range(50))
    with site.engine.connect() as connection:
        for end in ("commit", "rollback"):
            transaction = connection.begin()
            with in_transaction(connection):
                tasks.apply_async()
                bulk_publish([site.task("record", "bulk")])
            getattr(transaction, end)()
    site.relay_all()

    assert arguments(site.drain()) == [*map(str, range(50)), "bulk"]


def test_a_retry_does_not_take_part(site: OutboxSite):
    """It leaves the task by an exception, which rolls the transaction back: the task would be lost."""
    site.worker("-Q", site.queue)
    table = f"retrying_{site.queue[-8:]}"
    with site.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (x INTEGER)"))
    try:
        site.send("retry_in_transaction", site.database.url, table)
        eventually(lambda: site.marks("again"))
        assert site.left() == 0
    finally:
        with site.engine.begin() as connection:
            connection.execute(text(f"DROP TABLE {table}"))


def test_commands_to_workers_go_out_at_once(site: OutboxSite):
    """Whoever asks workers something waits for the answer, and not for a commit."""
    worker = site.worker("-Q", site.queue)
    with site.engine.begin() as connection, in_transaction(connection):
        assert site.app.control.ping(timeout=5), worker.text
    assert site.left() == 0


def test_a_message_that_is_too_large_for_the_outbox_is_refused(site: OutboxSite):
    site.app.conf.sqlqueue_outbox_options["max_message_bytes"] = 1000
    with (
        site.engine.begin() as connection,
        in_transaction(connection),
        pytest.raises(MessageTooBigError, match="max_message_bytes"),
    ):
        record(site, "x" * 1000)

    assert site.left() == 0


def test_an_outbox_is_not_for_djangos_blocks_that_say_nothing(site: OutboxSite):
    site.app.conf.sqlqueue_outbox_options = {"django_alias": "default"}

    with pytest.raises(ConfigurationError, match="within in_transaction"):
        outbox_options(site.app)


def test_sending_connects_to_no_broker(make_outbox_site: MakeSite):
    """The broker may be away: a task is stored all the same, and at once."""
    site = make_outbox_site("redis")
    site.app.conf.broker_url = "redis://127.0.0.1:1/0"
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "x")

    assert site.left() == 1


def test_a_relay_whose_lease_is_about_to_end_renews_it_and_passes_all_on(site: OutboxSite):
    """It does not take having no right to read for there being nothing to read."""
    site.app.conf.sqlqueue_outbox_options["lease_for"] = 30
    process = process_for(site.outbox_options.database)
    lessee = process.keeper(site.outbox_options).enrol()
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "x")
    database, table = process.database, process.database.tables.lessee
    soon = update(table).where(table.c.id == lessee).values(expires_at=database.now() + 5_000_000)
    database.run(lambda tx: tx.execute(soon))
    site.relay_all()

    assert arguments(site.drain()) == ["x"]


@pytest.mark.parametrize("wrong", [{"password": {}}, {"schema": ["x"]}, {"lease_for": "soon", 1: 2}])
def test_a_wrong_option_of_the_outbox_is_named(site: OutboxSite, wrong: dict[Any, Any]):
    site.app.conf.sqlqueue_outbox_options = wrong
    with pytest.raises(ConfigurationError, match=f"sqlqueue_outbox_options.*{next(iter(wrong))}"):
        outbox_options(site.app)


def test_what_is_given_for_the_options_of_the_outbox_by_mistake_is_not_shown():
    with Celery(set_as_current=False) as app:
        url = "sqlqueue+postgresql://app:s3cret@host/database"
        app.conf.update(sqlqueue_outbox=url, sqlqueue_outbox_options=url)
        with pytest.raises(ConfigurationError, match="sqlqueue_outbox_options is of type str") as refused:
            outbox_options(app)

    assert "s3cret" not in str(refused.value)


def test_results_that_need_the_broker_at_once_are_refused(site: OutboxSite):
    with Celery(set_as_current=False, broker=site.app.conf.broker_url, backend="rpc://") as app:
        app.conf.update(
            sqlqueue_outbox=site.app.conf.sqlqueue_outbox, sqlqueue_outbox_options=site.app.conf.sqlqueue_outbox_options
        )
        with site.engine.begin() as connection, in_transaction(connection):
            with pytest.raises(TransactionNotSupportedError, match="ignore_result"):
                app.send_task("nothing")
            app.send_task("nothing", ignore_result=True)
    assert site.left() == 1


def test_settings_in_djangos_way_are_found(database_options: DatabaseOptions):
    """CELERY_SQLQUEUE_OUTBOX, with the namespace that Celery's guide for Django uses."""
    with Celery(set_as_current=False) as app:
        settings = {"CELERY_BROKER_URL": "memory://", "CELERY_SQLQUEUE_OUTBOX": f"sqlqueue+{database_options.url}"}
        settings["CELERY_SQLQUEUE_OUTBOX_OPTIONS"] = {"table_prefix": "mine_"}
        app.config_from_object(type("settings", (), settings), namespace="CELERY")
        options = outbox_options(app)

    assert options is not None
    assert options.database.table_prefix == "mine_"
    assert isinstance(app.amqp, AMQP)
