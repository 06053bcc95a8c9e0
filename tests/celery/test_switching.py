"""Tasks that wait at another broker are taken over with Celery's own command, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from celery.contrib.migrate import migrate_tasks
from kombu import Connection, Queue

from kombu_sqlqueue.options import DatabaseOptions

from .workers import Site, eventually

#: Each with workers for minutes: what differs on MariaDB is tested elsewhere.
DATABASES = ("sqlite", "postgresql")

#: Test processes share one Redis: each has a database in it, as what is unacked there is one list for all queues.
REDIS_DATABASE = 15 - int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 15
#: Where to find the brokers to come from.
BROKERS = {
    "redis": os.environ.get("SQLQUEUE_TEST_REDIS_URL", f"redis://127.0.0.1:6379/{REDIS_DATABASE}"),
    "rabbitmq": os.environ.get("SQLQUEUE_TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//"),
}


class OldBroker:
    """A Redis or RabbitMQ with tasks in queues that only this test uses."""

    def __init__(self, url: str, queues: list[str]) -> None:
        self.url = url
        self.queues = queues
        self.app = Celery("old", broker=url, set_as_current=False)
        self.app.conf.task_create_missing_queues = True
        with self.connect() as connection:
            for queue in queues:
                self.declared(queue)(connection.default_channel).declare()

    def declared(self, queue: str) -> Queue:
        """As Celery declares a queue that no setting names."""
        return self.app.amqp.queues[queue]

    def connect(self) -> Connection:
        return Connection(self.url, connect_timeout=2)

    def send(self, text: str, queue: str, **options: Any) -> None:
        self.send_task("record", text, queue=queue, **options)

    def send_task(self, name: str, *args: Any, **options: Any) -> None:
        self.app.signature(f"tests.celery.tasks.{name}", args).apply_async(**options)

    def waiting(self) -> int:
        """How many messages are in the queues."""
        with self.connect() as connection:
            return sum(self._waiting(connection, queue) for queue in self.queues)

    def _waiting(self, connection: Connection, queue: str) -> int:
        try:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0  # Redis knows of no empty queues

    def close(self) -> None:
        with self.connect() as connection:
            for queue in self.queues:
                connection.default_channel.queue_delete(queue)
        self.app.close()


@pytest.fixture(params=list(BROKERS))
def old(request: pytest.FixtureRequest) -> Iterator[OldBroker]:
    """Each broker that people come from, with two queues."""
    pytest.importorskip({"redis": "redis", "rabbitmq": "amqp"}[request.param])
    url = BROKERS[request.param]
    try:
        with Connection(url, connect_timeout=2) as connection:
            connection.ensure_connection(max_retries=1)
    except Connection(url).connection_errors as error:
        pytest.skip(f"no {request.param} answers: {error}")
    broker = OldBroker(url, [f"old-{uuid.uuid4().hex[:8]}" for _ in range(2)])
    yield broker
    broker.close()


def bare_url(options: DatabaseOptions) -> str:
    """A URL that needs no options beside it, as the command takes none."""
    url = f"sqlqueue+{options.url}"
    if options.schema:
        url += f"{'&' if '?' in url else '?'}options={quote(f'-csearch_path={options.schema}')}"
    return url


def migrate(old: OldBroker, site: Site, *arguments: str) -> list[str]:
    """The command that moves all of `old` to `site`."""
    return ["migrate", "--ack-messages", *arguments, "-Q", ",".join(old.queues), old.url, bare_url(site.database)]


def run(command: list[str], site: Site) -> None:
    done = site.run(*command)
    assert done.process.poll() == 0, done.text


def test_celery_migrate_takes_over_what_waits(old: OldBroker, site: Site):
    """Several queues, priorities, ETA, expiry, compression: each task runs once, in order, when it is due."""
    first, second = old.queues
    now = time.time()
    old.send("later", first, countdown=6)
    old.send("soon", first, countdown=0.1)
    old.send("compressed é\0", first, compression="zlib")
    old.send("other queue", second)
    old.send("in time", second, expires=3600)
    old.send("too late", second, expires=0.01)
    for priority in (0, 6, 9):
        old.send(f"priority {priority}", first, priority=priority)

    run(migrate(old, site, "--timeout=3"), site)
    assert old.waiting() == 0
    site.worker("-Q", ",".join(old.queues))
    eventually(lambda: site.marks("later") and sum(map(site.waiting, old.queues)) == 0)

    expected = {"later", "soon", "compressed é\0", "other queue", "in time", *(f"priority {p}" for p in (0, 6, 9))}
    assert Counter(site.marks()) == dict.fromkeys(expected, 1)
    assert [mark for mark in site.marks() if mark.startswith("priority")] == ["priority 9", "priority 6", "priority 0"]
    assert site.times("later")[0] >= now + 6


def test_a_migration_that_was_killed_lost_nothing(old: OldBroker, site: Site):
    """Each message is stored here before it is acked there: what was in between comes twice, never not at all."""
    texts = [f"task {i}" for i in range(400)]
    for text in texts:
        old.send(text, old.queues[0])
    process = site.start("-A", "tests.celery.tasks", *migrate(old, site), name="killed").process
    eventually(lambda: site.waiting(old.queues[0]) > 20 or process.poll() is not None, 180)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
    eventually(lambda: restore_unacked(old) or old.waiting() + site.waiting(old.queues[0]) >= len(texts))
    run(migrate(old, site, "--timeout=3"), site)

    assert old.waiting() == 0
    assert site.waiting(old.queues[0]) >= len(texts)
    site.worker("-c2", "-Q", old.queues[0])
    eventually(lambda: site.waiting(old.queues[0]) == 0)
    assert set(texts) - set(site.marks()) == set()
    assert site.dead() == []


def restore_unacked(old: OldBroker) -> None:
    """What a killed consumer of Redis held stays hidden for its visibility timeout: end that now."""
    if not old.url.startswith("redis"):
        return
    with Connection(old.url, transport_options={"visibility_timeout": 0}) as connection:
        channel = connection.default_channel
        # It may have been killed while it looked for such itself, and what it locked for that stays locked for minutes.
        channel.client.delete(channel.unacked_mutex_key)
        channel.qos.restore_visible(num=10_000)


def test_priorities_of_redis_are_taken_over_with_the_apps_options(old: OldBroker, make_site: Callable[..., Site]):
    """The function behind the command takes connections, and so all options: here the lower number goes first."""
    site = make_site(options={"priority_order": "asc"})
    queue = old.queues[0]
    for priority in (9, 0, 5):
        old.send(f"priority {priority}", queue, priority=priority)

    with old.connect() as source, site.app.connection_for_write() as destination:
        migrate_tasks(source, destination, app=site.app, queues=queue, ack_messages=True, timeout=3)
    site.worker("-Q", queue)
    eventually(lambda: len(site.marks()) == 3)

    assert site.marks() == ["priority 0", "priority 5", "priority 9"]


def test_a_worker_may_read_from_the_old_broker_and_write_to_the_new(old: OldBroker, make_site: Callable[..., Site]):
    """While both are there: what the old tasks send goes to the new workers only."""
    new, queue = make_site(), old.queues[0]
    in_between = make_site(broker_read_url=old.url, broker_write_url=bare_url(new.database))
    for i in range(3):
        old.send_task("pass_on", f"task {i}", queue, queue=queue)
    in_between.worker("-Q", queue, name="old")
    eventually(lambda: new.counts(queue).ready == 3)
    assert old.waiting() == 0

    new.worker("-Q", queue, name="new")
    eventually(lambda: {f"task {i}" for i in range(3)} <= set(new.marks()))
    assert len(new.marks()) == 6


def test_the_way_back_is_open(old: OldBroker, site: Site):
    """The same takes tasks from here to another broker, all that are due."""
    queue = old.queues[0]
    for text in ("one", "two é\0"):
        site.send("record", text, queue=queue)
    site.send("record", "later", queue=queue, countdown=3600)

    with site.app.connection_for_read() as source, old.connect() as destination:
        migrate_tasks(source, destination, app=site.app, queues=queue, ack_messages=True, timeout=3)

    got = []
    with old.connect() as connection:
        bound = old.declared(queue)(connection.default_channel)
        while message := bound.get(no_ack=True):
            got.append(message.payload[0][0])
    assert got == ["one", "two é\0"]
    assert site.counts(queue).delayed == 1
