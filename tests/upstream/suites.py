"""The upstream suites, each with how the harness is told to run it on a database."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy.engine import URL, make_url

from kombu_sqlqueue.options import DatabaseOptions

from ..databases import LOCAL_MARIADB, LOCAL_POSTGRES, MARIADB_URL, POSTGRES_URL, answers, migrate, new_database

__all__ = ["SUITES", "Outcome", "Suite", "Unavailable"]

#: What starts a suite, in the folder of the harness.
RUNNERS = {"kombu": "run_kombu_suite.py", "celery": "run_celery_suite.py"}
SERVERS = {
    "postgresql": os.environ.get(POSTGRES_URL, LOCAL_POSTGRES),
    "mariadb": os.environ.get(MARIADB_URL, LOCAL_MARIADB),
}
REDIS = os.environ.get("REDIS_HOST", "localhost"), os.environ.get("REDIS_PORT", "6379")
#: A port where nothing listens, for what upstream wants to see fail.
DEAD_PORT = 5999
#: Seconds that one test of Celery's may take, as upstream has it: two wait for minutes on purpose.
TIMEOUT = "300"

#: A line of the harness's results: how the test ended, its seconds, its name, perhaps a comment.
_RESULT = re.compile(r"^(\w[\w-]*)\s+(?:[\d.]+s )?(t[./]integration[./]\S.*?)(?:  # .*)?$")


class Unavailable(Exception):
    """What the suite needs is not there."""


@dataclass(frozen=True)
class Outcome:
    """How each test of a suite ended, by its name."""

    tests: dict[str, str]

    @property
    def passed(self) -> int:
        return len(self.tests) - len(self.others)

    @property
    def others(self) -> dict[str, str]:
        """Those that did not pass."""
        return {name: end for name, end in self.tests.items() if end != "passed"}


@dataclass(frozen=True)
class Suite:
    """One upstream suite on one database."""

    of: str
    database: str

    @property
    def label(self) -> str:
        return f"{self.of}-{self.database}"

    @property
    def title(self) -> str:
        return f"{self.of} {version(self.of)} on {self.database}"

    def run(self, harness: Path, results: Path) -> Outcome:
        """Run it on a database made for it. Raises Unavailable if something is missing."""
        report = results / f"{self.label}.txt"
        report.unlink(missing_ok=True)
        with self._database() as options:
            migrate(options)
            url = make_url(options.url).set(query={})
            arguments, environment = self._celery(url) if self.of == "celery" else self._kombu(url)
            subprocess.run(
                [sys.executable, harness / RUNNERS[self.of], self.label, "--results", results, *arguments],
                env={**os.environ, "C_FORCE_ROOT": "1", **environment},
                check=False,
            )
        return _outcome(report)

    @contextmanager
    def _database(self) -> Iterator[DatabaseOptions]:
        if self.database == "sqlite":
            with TemporaryDirectory(prefix="sqlqueue-") as directory:
                yield DatabaseOptions(f"sqlite:///{directory}/queue.db")
        elif answers(SERVERS[self.database]):
            with new_database(SERVERS[self.database]) as options:
                yield options
        else:
            raise Unavailable(f"no {self.database} answers at {make_url(SERVERS[self.database])!r}")

    def _kombu(self, url: URL) -> tuple[list[str], dict[str, str]]:
        """Where there is a server, its URL of the form that Kombu takes apart: upstream compares hosts and ports."""
        if self.database == "sqlite":
            live, dead = _text(url, "sqlqueue+sqlite"), "sqlqueue+sqlite:////nowhere/queue.db"
        else:
            scheme = f"sqlqueue-{self.database}"
            live, dead = _text(url, scheme), _text(url.set(port=DEAD_PORT), scheme)
        # Its "asc" means that the higher number goes first.
        return [], {"TRANSPORT_URL": live, "DEAD_URL": dead, "PRIORITY_ORDER": "asc"}

    def _celery(self, url: URL) -> tuple[list[str], dict[str, str]]:
        """Upstream's tasks tell its tests what they did through a Redis, whatever is under test."""
        _check_redis()
        ours = _text(url, f"sqlqueue+{self.database}")
        arguments = ["--isolate", "--unskip-redis", "--reruns", "0", "--timeout", TIMEOUT, "--kill-after", "3600"]
        host, port = REDIS
        return arguments, {"BROKER_URL": ours, "RESULT_BACKEND": ours, "REDIS_HOST": host, "REDIS_PORT": port}


SUITES = [
    Suite("kombu", "postgresql"),
    Suite("kombu", "sqlite"),
    Suite("kombu", "mariadb"),
    Suite("celery", "postgresql"),
]


def _check_redis() -> None:
    host, port = REDIS
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise Unavailable(f"no Redis answers at {host}:{port}") from error


def _text(url: URL, scheme: str) -> str:
    return url.set(drivername=scheme).render_as_string(hide_password=False)


def _outcome(results: Path) -> Outcome:
    lines = results.read_text().splitlines() if results.exists() else []
    return Outcome({_name(row[2]): row[1] for row in map(_RESULT.match, lines) if row})


def _name(node: str) -> str:
    """The name as the page has it: without the folder, and without the module that the harness made for its run."""
    node = node.removeprefix("t/integration/")
    return re.sub(r"^t\.integration\.\w+\.", "", node)
