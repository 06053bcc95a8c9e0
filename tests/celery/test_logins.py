"""TLS and passwords as a deployment has them: certificates that are checked, passwords that change while everything runs."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from kombu_sqlqueue.errors import StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database

from ..databases import LOCAL_MARIADB, MARIADB_URL, answers, execute, migrate, new_database
from ..servers import PostgresServer, certificates, started_server
from .workers import Site, eventually

#: So large that what is announced cannot be taken for what was found by polling.
INTERVAL = 20.0
VAULT = "import json, pathlib\n\n\ndef token():\n    return json.loads(pathlib.Path({path!r}).read_text())\n"


class Vault:
    """Where the password is kept, and a module that reads it."""

    def __init__(self, directory: Path) -> None:
        self._kept = directory / "kept"
        name = f"vault_{uuid.uuid4().hex[:8]}"
        (directory / f"{name}.py").write_text(VAULT.format(path=str(self._kept)))
        self.option = f"{name}:token"

    def keep(self, password: str) -> None:
        self._kept.write_text(json.dumps(password))


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vault:
    monkeypatch.syspath_prepend(tmp_path)
    return Vault(tmp_path)


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(url: str, **options: object) -> Site:
        site = Site(DatabaseOptions(normalise(url)), tmp_path, options={"polling_interval": INTERVAL, **options})
        site.environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
        sites.append(site)
        return site

    yield make
    for site in sites:
        site.close()
        process_for(site.app.connection_for_write().transport.options.database).close()


def works(site: Site) -> None:
    """Tasks run and answer, and the worker is told of each."""
    for number in range(3):
        assert site.send("echo", number).get(timeout=INTERVAL) == number


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """It knows a role `app` that needs a password."""
    with started_server() as server:
        server.start()
        migrate(DatabaseOptions(normalise(server.url)))
        server.ask("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'one%2F@:\"'")
        yield server


def as_app(server: PostgresServer) -> str:
    return server.url.replace("postgres@", "app@")


@pytest.mark.parametrize("cut", ["%", "sqlqueue listen"])
def test_a_password_that_changes_is_asked_for_at_each_connect(
    server: PostgresServer, vault: Vault, make_site: Callable[..., Site], cut: str
):
    """The worker, its children, the line that listens, who sends and waits, and the commands."""
    vault.keep('one%2F@:"')
    site = make_site(as_app(server), password=vault.option)
    worker = site.worker("-c2")
    works(site)
    server.ask("ALTER ROLE app PASSWORD 'two'")
    vault.keep("two")
    assert server.cut(cut)
    works(site)
    checked = site.run("sqlqueue", "check")

    assert checked.process.poll() == 0, checked.text
    assert worker.process.poll() is None
    assert "two" not in worker.text + checked.text


def test_a_password_that_comes_late_is_waited_for(server: PostgresServer, vault: Vault, make_site: Callable[..., Site]):
    """The server has the new one before the vault gives it: the same worker goes on when it does."""
    vault.keep('one%2F@:"')
    site = make_site(as_app(server), password=vault.option)
    worker = site.worker()
    works(site)
    server.ask("ALTER ROLE app PASSWORD 'two'")
    server.cut()
    eventually(lambda: "password authentication failed" in worker.text)
    vault.keep("two")

    works(site)
    assert worker.process.poll() is None


def test_a_password_file_is_read_at_each_connect(
    server: PostgresServer, make_site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As libpq does it, with nothing in the settings."""
    file = tmp_path / "pgpass"
    file.write_text('*:*:*:app:one%2F@\\:"\n')
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    site = make_site(as_app(server))
    site.environment["PGPASSFILE"] = str(file)
    site.worker()
    works(site)
    server.ask("ALTER ROLE app PASSWORD 'two'")
    file.write_text("*:*:*:app:two\n")
    server.cut()

    works(site)


def test_a_password_that_changes_on_mariadb_is_asked_for_at_each_connect(vault: Vault, make_site: Callable[..., Site]):
    address = os.environ.get(MARIADB_URL, LOCAL_MARIADB)
    if not answers(address):
        pytest.skip(f"no MariaDB: set {MARIADB_URL}, or start one on 127.0.0.1:3306")
    user = f"app_{uuid.uuid4().hex[:8]}"
    with new_database(address) as options:
        migrate(options)
        root = Database(options)
        vault.keep("one")
        execute(root, f"CREATE USER {user} IDENTIFIED BY 'one'")
        execute(root, f"GRANT ALL ON {make_url(options.url).database}.* TO {user}")
        try:
            url = make_url(options.url).set(username=user).render_as_string(hide_password=False)
            site = make_site(url.replace("+pymysql", ""), password=vault.option, polling_interval=1)
            worker = site.worker()
            works(site)
            execute(root, f"ALTER USER {user} IDENTIFIED BY 'two'")
            vault.keep("two")
            cut_sessions(root, user)
            works(site)
            assert worker.process.poll() is None
            site.close()
        finally:
            execute(root, f"DROP USER {user}")
            root.dispose()


def cut_sessions(root: Database, user: str) -> None:
    of_user = text("SELECT id FROM information_schema.processlist WHERE user = :user")
    for number in root.statement(lambda tx: tx.scalars(of_user, {"user": user}).all()):
        execute(root, f"KILL {int(number)}")


def test_tls_with_a_certificate_that_is_checked(make_site: Callable[..., Site], tmp_path: Path):
    """The pool, the line that listens and the result backend; with a wrong authority nobody connects, and is told why."""
    made = certificates(tmp_path)
    with started_server(tls=True, ssl="on", ssl_cert_file="server.pem", ssl_key_file="server.key") as server:
        server.install(made)
        server.start()
        migrate(DatabaseOptions(normalise(server.url)))
        server.ask("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'hunter2'")
        url = server.url.replace("postgres@127.0.0.1", "app:hunter2@localhost") + "?sslmode=verify-full&sslrootcert="
        site = make_site(f"{url}{made['ca']}")
        site.worker()
        works(site)
        not_encrypted = server.ask(
            "SELECT application_name FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE usename = 'app' AND NOT ssl"
        )
        assert server.ask("SELECT 1 FROM pg_stat_activity WHERE application_name = 'sqlqueue listen'")
        assert not_encrypted == []

        stranger = Database(DatabaseOptions(normalise(f"{url}{made['other']}")))
        with pytest.raises(StoreUnavailableError, match="certificate verify failed") as raised:
            stranger.ping()
        assert "hunter2" not in str(raised.value)
        site.close()
