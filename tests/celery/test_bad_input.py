"""Mistakes end in an error that names them and the way out; nothing is lost and no password is shown."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from kombu.exceptions import EncodeError, OperationalError
from sqlalchemy import event, text
from sqlalchemy.engine import make_url

from kombu_sqlqueue.errors import ConfigurationError, MessageTooBigError, SchemaError
from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database

from ..databases import execute, migrate
from .workers import Site, eventually

PASSWORD = "hush-hush"


def app_on(url: str, **options: object) -> Celery:
    app = Celery("mistaken", broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0.05}
    return app


@pytest.fixture
def without_tables(database_options: DatabaseOptions) -> Iterator[DatabaseOptions]:
    """A schema of PostgreSQL in which nothing was migrated."""
    if not database_options.schema:
        pytest.skip("SQLite migrates itself")
    options = DatabaseOptions(database_options.url, table_prefix="unmigrated_", schema=database_options.schema)
    yield options
    process_for(options).close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlqueue+oracle://u:hush-hush@host/db", "is not a database URL"),
        ("sqlqueue+postgresql+psycopg2://u:hush-hush@host/db", "'psycopg2' is not supported"),
        ("sqlqueue+postgresql://u:hush-hush@host", "names no database"),
        ("sqlqueue+sqlite:////no/such/directory/queue.db", "/no/such/directory"),
    ],
)
def test_a_wrong_url_is_refused(url: str, said: str):
    """At the first use, with what to write instead."""
    with pytest.raises(ConfigurationError, match=said) as caught:
        app_on(url).send_task("anything")
    assert PASSWORD not in str(caught.value)


def test_an_unknown_option_is_refused_with_the_right_name(tmp_path: Path):
    """A near miss is no option to ignore silently."""
    with pytest.raises(ConfigurationError, match="'lease_fro': did you mean 'lease_for'"):
        app_on(f"sqlqueue+sqlite:///{tmp_path}/queue.db", lease_fro=5).send_task("anything")


def test_options_of_another_broker_are_ignored_with_one_warning(tmp_path: Path):
    """Who comes from Redis starts at once, and reads what replaces the option."""
    app = app_on(f"sqlqueue+sqlite:///{tmp_path}/queue.db", visibility_timeout=3600, fanout_prefix=True)
    with pytest.warns(UserWarning, match="visibility_timeout.*leases are renewed"):
        app.send_task("anything")


def test_tls_settings_of_another_broker_are_not_ignored_silently(tmp_path: Path):
    """Nobody may think that a connection is encrypted when it is not."""
    app = app_on(f"sqlqueue+sqlite:///{tmp_path}/queue.db")
    app.conf.broker_use_ssl = {"ssl_cert_reqs": "required"}
    with pytest.warns(UserWarning, match="broker_use_ssl: ask the driver for TLS in the URL"):
        app.send_task("anything")


def test_a_missing_driver_names_the_extra_to_install():
    """psycopg is optional; who has not installed it is told how to."""
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from celery import Celery\n"
        "Celery('x', broker='sqlqueue+postgresql://u:hush-hush@127.0.0.1/db').send_task('anything')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert "pip install 'kombu-sqlqueue[postgresql]'" in run.stderr
    assert PASSWORD not in run.stderr


def test_missing_tables_name_the_command(without_tables: DatabaseOptions, tmp_path: Path):
    """A producer raises, a worker exits; both say what to run."""
    options = {"schema": without_tables.schema, "table_prefix": without_tables.table_prefix}
    with pytest.raises(SchemaError, match=r"run `celery .* sqlqueue migrate`"):
        app_on(f"sqlqueue+{without_tables.url}", **options).send_task("anything")

    site = Site(without_tables, tmp_path, options=options)
    worker = site.worker(wait=False)
    assert worker.process.wait(60) != 0
    assert "sqlqueue migrate`" in worker.text


def test_a_role_without_rights_is_told_so(database_options: DatabaseOptions):
    """The error names what was refused, not the password."""
    if not database_options.schema:
        pytest.skip("SQLite knows no roles")
    owner = process_for(database_options).database
    role = f"nobody_{database_options.schema}"
    owner.run(lambda tx: tx.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'hush-hush'")))
    url = make_url(database_options.url).set(username=role, password=PASSWORD)
    options = DatabaseOptions(url.render_as_string(hide_password=False), schema=database_options.schema)
    try:
        with pytest.raises(ConfigurationError, match=r"permission denied.*grant") as caught:
            app_on(f"sqlqueue+{options.url}", schema=options.schema).send_task("anything")
        assert PASSWORD not in str(caught.value)
    finally:
        process_for(options).close()
        owner.run(lambda tx: tx.execute(text(f"DROP ROLE {role}")))


def test_a_message_too_big_is_refused_before_it_is_stored(make_site):
    """max_message_bytes bounds what one message may cost the database."""
    site = make_site(options={"max_message_bytes": 10_000})
    with pytest.raises(MessageTooBigError, match=r"max_message_bytes allows 10000"):
        site.send("echo", "x" * 20_000)
    assert site.waiting() == 0


def test_what_does_not_serialise_is_refused_before_it_is_stored(site: Site):
    """Arguments by the serializer, headers by us; neither leaves half a message."""
    with pytest.raises(EncodeError):
        site.send("echo", object())
    with pytest.raises(EncodeError, match="header or property"):
        site.send("echo", 1, headers={"thing": object()})
    assert site.waiting() == 0


def test_a_full_database_refuses_and_keeps_what_it_has(tmp_path: Path):
    """The publish raises with the database's own words; what was stored before is still there."""
    options = DatabaseOptions(normalise(f"sqlqueue+sqlite:///{tmp_path}/queue.db"))
    migrate(options)
    database = process_for(options).database
    event.listen(database.engine, "connect", lambda connection, record: connection.execute("PRAGMA max_page_count = 200"))
    app = app_on(f"sqlqueue+{options.url}")
    app.send_task("first", queue="celery")

    def fill() -> None:
        for _ in range(100):
            app.send_task("more", args=["x" * 50_000], queue="celery")

    with pytest.raises(OperationalError, match="disk is full"):
        fill()
    stored = process_for(options).messages.counts(["celery"])[0].ready
    assert 1 <= stored < 100
    process_for(options).close()


@pytest.fixture
def with_password(database_options: DatabaseOptions) -> Iterator[str | None]:
    """A user of the database who needs PASSWORD; None where any password will do."""
    if make_url(database_options.url).get_backend_name() not in ("mysql", "mariadb"):
        yield None
        return
    database = Database(database_options)
    name = f"sqlqueue_{uuid.uuid4().hex[:8]}"
    execute(database, f"CREATE USER {name}@'%%' IDENTIFIED BY '{PASSWORD}'")
    try:
        execute(database, f"GRANT ALL ON {make_url(database_options.url).database}.* TO {name}@'%%'")
        yield name
    finally:
        execute(database, f"DROP USER {name}@'%%'")
        database.dispose()


def test_passwords_are_shown_nowhere(database_options: DatabaseOptions, with_password: str | None, tmp_path: Path):
    """Not in the worker's log, not in a repr, not in the answers to remote control."""
    url = make_url(database_options.url)
    if url.get_backend_name() == "sqlite":
        pytest.skip("SQLite knows no passwords")
    url = url.set(username=with_password or url.username, password=PASSWORD)
    options = DatabaseOptions(url.render_as_string(hide_password=False), schema=database_options.schema)
    site = Site(options, tmp_path)
    try:
        worker = site.worker()
        stats = eventually(lambda: site.app.control.inspect(timeout=1).stats())
        connection = site.app.connection_for_read()
        shown = [worker.text, str(stats), repr(connection), connection.as_uri(), repr(connection.transport.options)]
        shown += [repr(Database(options)), str(site.app.backend.as_uri())]
        assert not [each for each in shown if PASSWORD in each]
    finally:
        site.close()
        process_for(options).close()
