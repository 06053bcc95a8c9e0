"""The servers that the peers need: where they are, a fresh database in them, and what they have used and done."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache

import psutil
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

__all__ = ["MariaDB", "PostgreSQL", "RabbitMQ", "Redis", "SQLServer", "Server"]


class Server:
    """One that answers, or `missing` says why not."""

    variable = ""
    default = ""
    port = 0

    def __init__(self) -> None:
        self.url = os.environ.get(self.variable, self.default)

    def missing(self) -> str | None:
        """Why it cannot be used, None if it can."""
        raise NotImplementedError

    @contextmanager
    def place(self, name: str) -> Iterator[str]:
        """The URL of somewhere fresh, gone afterwards."""
        raise NotImplementedError

    def commands(self, place: str) -> float | None:
        """How many commands, queries or transactions it has carried out there so far."""
        return None

    def settle(self, place: str) -> None:
        """Do now what it would otherwise do some time after much was written."""

    def pinned(self, place: str) -> AbstractContextManager[None]:
        """Meanwhile a transaction that sees the database as it is now stays open there."""
        raise NotImplementedError

    def cpu(self) -> float | None:
        """Seconds of CPU so far; None for a server whose process is not ours to see."""
        process = _listener(make_url(self.url).port or self.port)
        return None if process is None else family_cpu(process)


class SQLServer(Server):
    driver = ""
    package = ""
    drop = "DROP DATABASE IF EXISTS {name}"

    def missing(self) -> str | None:
        try:
            with self._administration().connect():
                return None
        except ImportError:
            return f"{self.package} is not installed"
        except SQLAlchemyError:
            return f"no server answers where {self.variable} says"

    @contextmanager
    def place(self, name: str) -> Iterator[str]:
        database = f"sqlqueue_bench_{name.replace('-', '_')}_{uuid.uuid4().hex[:8]}"
        self._run(f"CREATE DATABASE {database}")
        try:
            yield make_url(self.url).set(database=database).render_as_string(hide_password=False)
        finally:
            self._run(self.drop.format(name=database))

    def _run(self, statement: str) -> None:
        with self._administration().connect() as connection:
            connection.exec_driver_sql(statement)

    @cache  # noqa: B019  There is one server of each kind.
    def _administration(self) -> Engine:
        url = make_url(self.url).set(drivername=self.driver)
        return create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)

    def _scalar(self, statement: str, **given: str) -> float:
        with self._administration().connect() as connection:
            return float(connection.execute(text(statement), given).scalar_one())


class PostgreSQL(SQLServer):
    variable = "SQLQUEUE_BENCH_POSTGRES_URL"
    default = "postgresql://postgres@127.0.0.1:5432/postgres"
    port = 5432
    driver = "postgresql+psycopg"
    package = "psycopg"
    drop = "DROP DATABASE IF EXISTS {name} WITH (FORCE)"

    def settle(self, place: str) -> None:
        engine = create_engine(make_url(place).set(drivername=self.driver), isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")

    @contextmanager
    def pinned(self, place: str) -> Iterator[None]:
        engine = create_engine(
            make_url(place).set(drivername=self.driver), isolation_level="REPEATABLE READ", poolclass=NullPool
        )
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT txid_current()")
            yield

    def commands(self, place: str) -> float:
        """Statements where pg_stat_statements can tell, else transactions, of this database alone."""
        name = make_url(place).database or ""
        with suppress(SQLAlchemyError):
            return self._scalar(
                "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements JOIN pg_database d ON d.oid = dbid WHERE datname = :name",
                name=name,
            )
        return self._scalar("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = :name", name=name)


class MariaDB(SQLServer):
    variable = "SQLQUEUE_BENCH_MARIADB_URL"
    default = "mariadb://root@127.0.0.1:3306/mysql"
    port = 3306
    driver = "mysql+pymysql"
    package = "PyMySQL"

    def commands(self, place: str) -> float:
        """Of the whole server: be alone on it."""
        return self._scalar("SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'")


class Redis(Server):
    """Databases 14 and 15 are the benchmarks' own: they are flushed before and after each visit."""

    variable = "SQLQUEUE_BENCH_REDIS_URL"
    default = "redis://127.0.0.1:6379"
    port = 6379
    broker, backend = 14, 15

    def missing(self) -> str | None:
        try:
            import redis
        except ImportError:
            return "redis is not installed"
        try:
            redis.Redis.from_url(self.url).ping()
        except redis.RedisError:
            return f"no server answers where {self.variable} says"
        return None

    @contextmanager
    def place(self, name: str) -> Iterator[str]:
        self._flush()
        try:
            yield self._url(self.broker)
        finally:
            self._flush()

    def results(self) -> str:
        return self._url(self.backend)

    def commands(self, place: str) -> float:
        """Of the whole server: be alone on it."""
        import redis

        with redis.Redis.from_url(place) as client:
            return float(client.info("stats")["total_commands_processed"])

    def _flush(self) -> None:
        import redis

        for number in (self.broker, self.backend):
            with redis.Redis.from_url(self._url(number)) as client:
                client.flushdb()

    def _url(self, number: int) -> str:
        return _string(make_url(self.url).set(database=str(number)))


class RabbitMQ(Server):
    variable = "SQLQUEUE_BENCH_RABBITMQ_URL"
    default = "amqp://guest:guest@127.0.0.1:5672//"
    port = 5672

    def missing(self) -> str | None:
        from kombu import Connection

        try:
            with Connection(self.url, connect_timeout=3) as connection:
                connection.connect()
        except OSError:
            return f"no server answers where {self.variable} says"
        return None

    @contextmanager
    def place(self, name: str) -> Iterator[str]:
        """Queues are told apart by name here; `forget` deletes them."""
        yield self.url

    def forget(self, queue: str) -> None:
        from kombu import Connection

        with Connection(self.url) as connection:
            channel = connection.default_channel
            channel.queue_delete(queue)
            channel.exchange_delete(queue)


def _string(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@cache
def _listener(port: int) -> psutil.Process | None:
    """The process of this machine that listens on the port."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return psutil.Process(connection.pid)
    return None


def family_cpu(process: psutil.Process) -> float:
    """Of a process and all its children, also of those that ended and were waited for."""
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            times = member.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
