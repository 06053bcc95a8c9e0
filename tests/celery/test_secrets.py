"""A password is shown nowhere, whatever goes wrong and whoever asks: everything that is printed is searched for it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database

from ..databases import LOCAL_MARIADB, MARIADB_URL, answers, execute, migrate, new_database
from ..servers import PostgresServer, started_server
from .workers import Site, eventually

SECRET = "hun/ter2@wien"
ENCODED = "hun%2Fter2%40wien"
#: Parts that are long enough to be told from other words.
TELLTALE = ("ter2@wien", "ter2%40wien", "hun/ter", "hun%2Fter")

#: How the lines begin in which Celery prints its settings, and those with a part of a URL that is none.
CELERYS_SETTINGS = ("settings -> ", "broker_url: ", "broker_read_url: ", "broker_write_url: ", "result_backend: ")

#: Shows all there is to show of an app with this URL, and what it logs when it is used, down to DEBUG.
SHOW_ALL = """
import logging, pprint, sys, warnings
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
warnings.simplefilter("always")
from celery import Celery
import kombu_sqlqueue.backend
kombu_sqlqueue.backend.PATIENCE = 0.1
for url in sys.argv[1:]:
    app = Celery("shown", broker=url, backend=url, set_as_current=False)
    app.conf.update(task_publish_retry=False, broker_transport_options={"max_retries": 1, "interval_start": 0, "interval_max": 0})
    def attempt(what):
        try:
            print(what())
        except Exception:
            logging.exception("failed")
    attempt(lambda: repr(app))
    attempt(lambda: app.bugreport())
    attempt(lambda: app.conf.humanize())
    attempt(lambda: repr(app.connection()))
    attempt(lambda: app.connection().as_uri())
    attempt(lambda: repr(app.connection().transport))
    attempt(lambda: repr(app.connection().transport.options))
    attempt(lambda: repr(app.connection().transport.process))
    attempt(lambda: repr(app.connection().transport.process.database.engine))
    attempt(lambda: repr(app.connection().channel()))
    attempt(lambda: repr(app.backend) + str(app.backend) + app.backend.as_uri())
    attempt(lambda: repr(app.backend.database_options))
    attempt(lambda: app.send_task("nothing"))
    attempt(lambda: app.AsyncResult("nothing").state)
    attempt(lambda: app.backend.store_result("another", 1, "SUCCESS"))
    attempt(lambda: app.control.ping(timeout=0.1))
    print("shown all")
"""


def lay_open(*urls: str) -> str:
    """All that is said of apps with these URLs."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW_ALL, *urls],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert done.stdout.count("shown all") == len(urls), done.stdout[-3000:]
    return done.stdout


def assert_hidden(said: str) -> None:
    assert shows(said) == []


def shows(said: str) -> list[str]:
    return [line for line in said.splitlines() if any(part in line for part in TELLTALE)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with started_server() as server:
        server.start()
        migrate(DatabaseOptions(normalise(server.url)))
        server.ask(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{SECRET}'")
        yield server


def test_whatever_is_wrong_with_the_url_its_password_is_not_shown(server: PostgresServer):
    """Everything right; another password, host, port, database or option; no TLS; the password where it does not belong."""
    good = f"sqlqueue+postgresql://app:{ENCODED}@127.0.0.1:{server.port}/postgres"
    said = lay_open(
        good,
        good.replace("app:", "app:wrong"),
        good.replace("app:", "nobody:"),
        good.replace("127.0.0.1", "nowhere.invalid"),
        good.replace(str(server.port), "1"),
        good.replace("/postgres", "/nowhere"),
        f"{good}?nonsense=1",
        f"{good}?sslmode=require",
        f"{good}?prepare_threshold=many",
        good.replace("postgresql:", "oracle:"),
    )

    assert_hidden(said)
    for expected in ("password authentication failed", "Connection refused", "nonsense", "SSL", "does not exist", "resolve"):
        assert expected in said, expected


def test_a_password_in_the_wrong_place_is_shown_by_celery_only(server: PostgresServer):
    """After the ?, or not percent-encoded: what Celery prints of its settings has it, what we print has not."""
    lines = shows(
        lay_open(
            f"sqlqueue+postgresql://app@127.0.0.1:{server.port}/postgres?password=wrong{ENCODED}",
            f"sqlqueue+postgresql://app:{SECRET}@127.0.0.1:{server.port}/postgres",
        )
    )

    assert [line for line in lines if not line.startswith(CELERYS_SETTINGS)] == []


def test_whatever_is_wrong_with_a_url_of_mariadb_its_password_is_not_shown():
    address = os.environ.get(MARIADB_URL, LOCAL_MARIADB)
    if not answers(address):
        pytest.skip(f"no MariaDB: set {MARIADB_URL}, or start one on 127.0.0.1:3306")
    user = f"app_{uuid.uuid4().hex[:8]}"
    with new_database(address) as options:
        root = Database(options)
        execute(root, f"CREATE USER {user} IDENTIFIED BY '{SECRET}'")
        execute(root, f"GRANT ALL ON {root.engine.url.database}.* TO {user}")
        url = make_url(options.url).set(drivername="sqlqueue+mysql", username=user, password=SECRET)
        good = url.render_as_string(hide_password=False)
        try:
            said = lay_open(
                good,
                good.replace(f"{user}:", f"{user}:wrong"),
                good.replace(f":{url.port}/", ":1/"),
                good.replace(f"/{url.database}", "/nowhere"),
                f"{good}&nonsense=1",
                f"{good}&ssl_ca=nowhere.pem",
            )
        finally:
            execute(root, f"DROP USER {user}")
            root.dispose()

    assert_hidden(said)
    assert "Access denied" in said


def test_a_worker_its_commands_and_its_remote_control_do_not_show_it(server: PostgresServer, tmp_path: Path):
    """From the banner to what it logs when the server goes and comes back."""
    options = DatabaseOptions(normalise(f"postgresql://app:{ENCODED}@127.0.0.1:{server.port}/postgres"))
    site = Site(options, tmp_path)
    try:
        worker = site.worker("-l", "DEBUG")
        said = [site.run(*command.split()).text for command in (
            "report", "inspect stats", "inspect conf", "sqlqueue check", "sqlqueue migrate --sql",
        )]  # fmt: skip
        server.stop()
        said.append(site.run("sqlqueue", "stats").text)
        eventually(lambda: "Connection refused" in worker.text)
        server.start()
        assert site.send("echo", "after").get(timeout=60) == "after"
        worker.stop()
        said.append(worker.text)
    finally:
        site.close()
        process_for(options).close()

    assert_hidden("\n".join(said))
    assert "Connection refused" in said[-2]
    assert "sqlqueue+postgresql" in said[1]
