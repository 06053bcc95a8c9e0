"""Who is compared: each a library with the servers it needs."""

from __future__ import annotations

import importlib.util
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .servers import MariaDB, PostgreSQL, RabbitMQ, Redis, Server, SQLServer
from .setting import Setting
from .site import Site

__all__ = ["ANCHOR", "PEERS", "Peer", "select"]

#: The peer that ratios are taken against.
ANCHOR = "redis"

POSTGRESQL, MARIADB, REDIS, RABBITMQ = PostgreSQL(), MariaDB(), Redis(), RabbitMQ()

#: A fresh place, as a broker URL and a result backend URL.
Urls = Callable[[str], tuple[str, str | None]]


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    urls: Urls
    engine: str = "celery"
    server: Server | None = None
    package: str | None = None
    ours: bool = False
    conf: dict[str, Any] = field(default_factory=dict)
    #: The broker lives in the worker: only what happens in one process can be measured.
    in_process: bool = False
    #: Its workers take delayed tasks in at once and keep them in memory.
    holds_delayed: bool = False

    @property
    def is_celery(self) -> bool:
        return self.engine == "celery"

    @property
    def prepares(self) -> bool:
        """It has tables that must be there before anybody comes; a SQLite file is made by the first."""
        return isinstance(self.server, SQLServer)

    def missing(self) -> str | None:
        """Why it cannot take part, None if it can."""
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return self.server.missing() if self.server else None

    @contextmanager
    def visit(self, **conf: Any) -> Iterator[Site]:
        """Everything fresh, and nothing left behind. `conf` is added to the Celery settings."""
        queue = f"sqlqueue_bench_{uuid.uuid4().hex[:8]}"
        with tempfile.TemporaryDirectory(prefix="sqlqueue-bench-") as directory, self._place(directory) as place:
            broker, backend = self.urls(place)
            setting = Setting(self.engine, queue, directory, broker, backend, {**self.conf, **conf})
            site = Site(setting, self.server, place, Path(directory))
            try:
                if self.prepares:
                    site.do("prepare")
                yield site
            finally:
                site.close()
                if isinstance(self.server, RabbitMQ):
                    self.server.forget(queue)

    @contextmanager
    def _place(self, directory: str) -> Iterator[str]:
        if self.server is None:
            yield f"sqlite:///{directory}/queue.db"
        else:
            with self.server.place(self.name) as place:
                yield place


def ours(place: str) -> tuple[str, str]:
    return f"sqlqueue+{place}", f"sqlqueue+{place}"


def sqlalchemy(place: str) -> tuple[str, str]:
    """Kombu's transport and Celery's backend, as their manuals say, with the drivers that we use too."""
    for scheme, driver in (("postgresql:", "postgresql+psycopg:"), ("mariadb:", "mysql+pymysql:")):
        place = place.replace(scheme, driver)
    return f"sqla+{place}", f"db+{place.replace('queue.db', 'results.db')}"


def alone(place: str) -> tuple[str, None]:
    return place, None


#: In the order in which they are visited and shown.
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "memory",
            "Celery, a broker that costs nothing",
            lambda _: ("memory://", None),
            in_process=True,
            conf={"broker_transport_options": {"polling_interval": 0.001}},
        ),
        Peer(
            "redis",
            "Celery on Redis",
            lambda place: (place, REDIS.results()),
            server=REDIS,
            package="redis",
            holds_delayed=True,
        ),
        Peer("rabbitmq", "Celery on RabbitMQ", lambda place: (place, "rpc://"), server=RABBITMQ, holds_delayed=True),
        Peer(
            "rabbitmq-confirms",
            "Celery on RabbitMQ, publishes confirmed",
            lambda place: (place, "rpc://"),
            server=RABBITMQ,
            holds_delayed=True,
            conf={"broker_transport_options": {"confirm_publish": True}},
        ),
        Peer("postgresql", "**kombu-sqlqueue on PostgreSQL**", ours, server=POSTGRESQL, ours=True),
        Peer("mariadb", "**kombu-sqlqueue on MariaDB**", ours, server=MARIADB, ours=True),
        Peer("sqlite", "**kombu-sqlqueue on SQLite**", ours, ours=True),
        Peer("sqla-postgresql", "Kombu's sqla on PostgreSQL", sqlalchemy, server=POSTGRESQL, holds_delayed=True),
        Peer("sqla-mariadb", "Kombu's sqla on MariaDB", sqlalchemy, server=MARIADB, holds_delayed=True),
        Peer("sqla-sqlite", "Kombu's sqla on SQLite", sqlalchemy, holds_delayed=True),
        Peer("procrastinate", "procrastinate", alone, "procrastinate", POSTGRESQL, "procrastinate"),
        Peer("pgqueuer", "pgqueuer", alone, "pgqueuer", POSTGRESQL, "pgqueuer"),
        Peer("dbos", "DBOS", alone, "dbos", POSTGRESQL, "dbos"),
    )
}


def select(names: list[str]) -> tuple[list[Peer], dict[str, str]]:
    """Those of these peers that are there, and why the others are not."""
    missing = {name: reason for name in names if (reason := PEERS[name].missing())}
    return [PEERS[name] for name in names if name not in missing], missing
