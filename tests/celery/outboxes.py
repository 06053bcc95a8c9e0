"""Apps whose broker is a Redis or RabbitMQ and whose tasks leave through an outbox."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Connection
from sqlalchemy import Engine, create_engine

from kombu_sqlqueue.options import DatabaseOptions, Options
from kombu_sqlqueue.outbox import outbox_options
from kombu_sqlqueue.outbox_store import OUTBOX
from kombu_sqlqueue.relay import Relay

from .workers import Site, Worker, eventually

__all__ = ["BROKERS", "OutboxSite", "arguments", "broker_url", "port_of", "record", "stop"]

#: Where to find the brokers. Queues have names of their own, so one database of Redis is enough.
BROKERS = {
    "redis": os.environ.get("SQLQUEUE_TEST_REDIS_URL", "redis://127.0.0.1:6379/9"),
    "rabbitmq": os.environ.get("SQLQUEUE_TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//"),
}


def broker_url(name: str) -> str:
    """The URL of a broker that answers; the test is skipped if it does not."""
    pytest.importorskip({"redis": "redis", "rabbitmq": "amqp"}[name])
    try:
        with Connection(BROKERS[name], connect_timeout=2) as connection:
            connection.ensure_connection(max_retries=1)
    except Connection(BROKERS[name]).connection_errors as error:
        pytest.skip(f"no {name} answers: {error}")
    return BROKERS[name]


class OutboxSite(Site):
    """A deployment with a broker of another kind, and an outbox on the database under test."""

    def __init__(self, database: DatabaseOptions, directory: Path, broker: str, **conf: Any) -> None:
        self.queue = f"outbox-{uuid.uuid4().hex[:8]}"
        self.broker = broker
        self.relays: list[Worker] = []
        self._queues = [self.queue]
        settings = {
            "sqlqueue_outbox": f"sqlqueue+{database.url}",
            "sqlqueue_outbox_options": {"schema": database.schema, "lease_for": 1},
            "task_default_queue": self.queue,
            # Names of their own for all that is left over in a broker that others use too.
            "control_exchange": f"{self.queue}-control",
            "event_exchange": f"{self.queue}-events",
            **conf,
        }
        super().__init__(database, directory, **settings)
        self.app.conf.broker_url = self.environment["TEST_BROKER_URL"] = broker
        self.app.conf.result_backend = conf.get("result_backend", "disabled://")
        self.environment["TEST_RESULT_BACKEND"] = self.app.conf.result_backend
        del self.app.conf.broker_transport_options["lease_for"], self.app.conf.broker_transport_options["schema"]
        settings["broker_transport_options"] = {}
        self.environment["TEST_CONF"] = json.dumps(settings)
        self.engine: Engine = create_engine(database.url)

    def queue_named(self, suffix: str) -> str:
        """Another queue, which is deleted at the end."""
        self._queues.append(f"{self.queue}-{suffix}")
        return self._queues[-1]

    def relay(self, *arguments: str, wait: bool = True, broker: str | None = None, outbox: str | None = None) -> Worker:
        """A `celery sqlqueue relay` process, perhaps with another way to the broker or the outbox."""
        environment = {"TEST_BROKER_URL": broker} if broker else {}
        if outbox:
            environment["TEST_CONF"] = json.dumps(json.loads(self.environment["TEST_CONF"]) | {"sqlqueue_outbox": outbox})
        name = f"relay{len(self.relays) + 1}"
        relay = self.start("-A", "tests.celery.tasks", "sqlqueue", "relay", *arguments, name=name, **environment)
        self.relays.append(relay)
        if wait:
            eventually(lambda: "relaying to" in relay.text or relay.process.poll() is not None)
        return relay

    def relay_all(self) -> None:
        """Pass on what is in the outbox, by a relay in this process."""
        assert Relay(self.app, self.outbox_options).run(once=True)

    @property
    def outbox_options(self) -> Options:
        options = outbox_options(self.app)
        assert options is not None
        return options

    def left(self) -> int:
        """How many messages are in the outbox."""
        return self.waiting(OUTBOX)

    def drain(self, queue: str | None = None) -> Iterator[Any]:
        """What waits in a queue of the broker, if there is one, as Kombu's messages, acked."""
        with self.app.connection_for_read() as connection, contextlib.suppress(*connection.channel_errors):
            channel = connection.default_channel
            while (message := channel.basic_get(queue or self.queue, no_ack=True)) is not None:
                yield channel.message_to_python(message)

    def close(self) -> None:
        for relay in self.relays:
            relay.kill()
        super().close()
        self.engine.dispose()
        self._leave_nothing()

    def _leave_nothing(self) -> None:
        """The broker is one that others use, too."""
        with Connection(self.broker) as connection:
            channel = connection.default_channel
            for queue in self._queues:
                with contextlib.suppress(*connection.channel_errors):
                    channel.queue_delete(queue)
            if connection.transport.driver_type == "redis":
                for key in channel.client.scan_iter(f"*{self.queue}*"):
                    channel.client.delete(key)
            else:
                # Each queue has an exchange of its name.
                for exchange in self._queues:
                    channel.exchange_delete(exchange)
                for kind in ("events", "control.pidbox", "topics", "x", "later"):
                    channel.exchange_delete(f"{self.queue}-{kind}")
                channel.exchange_delete(f"reply.{self.queue}-control.pidbox")


def record(site: OutboxSite, *texts: str, **options: Any) -> None:
    """Send a task for each text."""
    for each in texts:
        site.send("record", each, **options)


def arguments(messages: Iterable[Any]) -> list[Any]:
    """The first argument of each task."""
    return [json.loads(message.body)[0][0] for message in messages]


def stop(relay: Worker) -> int:
    """End it as a service manager does."""
    relay.signal(signal.SIGTERM)
    return relay.process.wait(30)


def port_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 0
