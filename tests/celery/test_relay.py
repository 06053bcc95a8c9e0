"""What a relay brings to Redis and RabbitMQ, and what it does when something is away or refused."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery, chain, chord, group
from kombu import Consumer, Exchange, Queue
from sqlalchemy import text
from sqlalchemy.engine import make_url

from kombu_sqlqueue import bulk_publish
from kombu_sqlqueue.letters import Letter
from kombu_sqlqueue.messages import NewMessage, Reason
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.outbox_store import OUTBOX
from kombu_sqlqueue.passing_on import Broker, Parcel
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.relay import Relay
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.transactions import in_transaction

from ..proxy import Proxy
from .outboxes import OutboxSite, arguments, broker_url, port_of, record, stop
from .workers import eventually

MakeSite = Callable[..., OutboxSite]


#: What the databases do in ways of their own is tested in test_outbox.py.
DATABASES = ("postgresql",)


@pytest.fixture(params=["redis", "rabbitmq"])
def site(request: pytest.FixtureRequest, make_outbox_site: MakeSite) -> OutboxSite:
    return make_outbox_site(request.param)


# -- what arrives -----------------------------------------------------------------------------

SIGNATURES: dict[str, Callable[[OutboxSite], Any]] = {
    "plain": lambda site: site.task("add", 1, 2),
    "keywords": lambda site: site.task("add").clone(kwargs={"x": "ä", "y": None}),
    "countdown": lambda site: site.task("add", 1, 2, countdown=3600),
    "eta and expires": lambda site: site.task("add", 1, 2, eta="2030-01-01T00:00:00+00:00", expires=7200),
    "priority": lambda site: site.task("add", 1, 2, priority=7),
    "routing by settings": lambda site: site.task("total", [1]),
    "custom exchange": lambda site: site.task(
        "add", 1, 2, exchange=f"{site.queue}-topics", exchange_type="topic", routing_key="a.b", declare=[topic_queue(site)]
    ),
    "headers": lambda site: site.task("add", 1, 2, headers={"tenant": "a", "nested": {"x": [1, 2.5, None, True]}}),
    "stamps": lambda site: stamped(site.task("add", 1, 2)),
    "links": lambda site: site.task("add", 1, 2, link=site.task("total"), link_error=site.task("fail")),
    "chain": lambda site: chain(site.task("add", 1, 2), site.task("add", 3), site.task("echo")),
    "group": lambda site: group(site.task("add", n, n) for n in range(3)),
    "pickle": lambda site: site.task("echo", {1, 2}, serializer="pickle"),
    "compression": lambda site: site.task("echo", "x" * 5000, compression="gzip"),
    "compressed bytes": lambda site: site.task("echo", b"\x00\xff", serializer="pickle", compression="bzip2"),
    "transient": lambda site: site.task("add", 1, 2, delivery_mode=1),
    "limits": lambda site: site.task("add", 1, 2, time_limit=60, soft_time_limit=50, shadow="other", ignore_result=True),
    "reply": lambda site: site.task("add", 1, 2, reply_to="somewhere", correlation_id="mine"),
}
#: What differs between any two that are sent, and says nothing of the way they came.
OF_ITS_OWN = {"delivery_tag", "body_encoding", "sqlqueue_origin"}
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def topic_queue(site: OutboxSite) -> Queue:
    exchange = Exchange(f"{site.queue}-topics", type="topic", durable=False, auto_delete=True)
    return Queue(site.queue, exchange, routing_key="a.#")


def stamped(signature: Any) -> Any:
    signature.stamp(customer="acme", stamped_headers=["customer"])
    return signature


def seen(message: Any) -> tuple[Any, ...]:
    """All that a worker can see of a message."""
    properties = {name: value for name, value in message.properties.items() if name not in OF_ITS_OWN}
    info = {name: value for name, value in (message.delivery_info or {}).items() if name in ("exchange", "routing_key")}
    properties["delivery_info"] = info
    return message.body, message.content_type, message.content_encoding, dict(message.headers), properties


@pytest.fixture
def same_ids(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets what is sent next have the ids, and the time, that was sent before."""
    numbers = random.Random(0)

    def again() -> None:
        numbers.seed(0)

    def number() -> str:
        digits = f"{numbers.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    for module in ("celery.canvas", "celery.app.base", "celery.app.task"):
        monkeypatch.setattr(f"{module}.uuid", number)
    moment = Celery(set_as_current=False).now()
    monkeypatch.setattr(Celery, "now", lambda self: moment)
    again()
    return again


@pytest.mark.parametrize("name", list(SIGNATURES))
def test_a_task_arrives_as_if_it_had_been_sent_directly(site: OutboxSite, name: str, same_ids: Callable[[], None]):
    """Body, content type, encoding, headers and properties are the same."""
    other = site.queue_named("routed")
    site.app.conf.task_routes = {"tests.celery.tasks.total": {"queue": other, "priority": 3}}
    site.app.conf.accept_content = ["json", "pickle"]
    SIGNATURES[name](site).apply_async()
    direct = [seen(message) for queue in (site.queue, other) for message in site.drain(queue)]
    same_ids()
    with site.engine.begin() as connection, in_transaction(connection):
        SIGNATURES[name](site).apply_async()
    site.relay_all()
    relayed = [seen(message) for queue in (site.queue, other) for message in site.drain(queue)]

    assert direct
    assert relayed == direct


@pytest.mark.parametrize("backend", ["redis", "ours"])
def test_chords_chains_and_groups_run_through_the_outbox(
    make_outbox_site: MakeSite, backend: str, database_options: DatabaseOptions
):
    """With a result backend of another kind and with ours."""
    url = broker_url("redis") if backend == "redis" else f"sqlqueue+{database_options.url}"
    given = {} if backend == "redis" else {"schema": database_options.schema}
    site = make_outbox_site("redis", result_backend=url, result_backend_transport_options=given)
    site.worker("-Q", site.queue)
    site.relay()
    with site.engine.begin() as connection, in_transaction(connection):
        summed = chord((site.task("add", n, n) for n in range(5)), site.task("total")).apply_async()
        chained = chain(site.task("add", 1, 2), site.task("add", 10)).apply_async()
        grouped = group(site.task("add", n, 1) for n in range(3)).apply_async()

    assert summed.get(timeout=30) == 20
    assert chained.get(timeout=30) == 13
    assert grouped.get(timeout=30) == [1, 2, 3]


def test_the_event_of_a_sent_task_leaves_with_it(make_outbox_site: MakeSite):
    """Not before the commit; and not at all after a rollback."""
    site = make_outbox_site("rabbitmq", task_send_sent_event=True)
    with site.app.connection_for_read() as listening:
        queue = Queue("", site.app.events.Receiver(listening).exchange, routing_key="#", exclusive=True, auto_delete=True)
        events: list[str] = []
        with Consumer(
            listening, [queue], accept=["json"], callbacks=[lambda body, m: events.append(body["type"])], no_ack=True
        ):
            transaction = (connection := site.engine.connect()).begin()
            with in_transaction(connection):
                record(site, "x")
            transaction.rollback()
            connection.close()
            with site.engine.begin() as connection, in_transaction(connection):
                record(site, "y")
            assert site.left() == 2
            site.relay_all()
            listening.drain_events(timeout=10)

            assert events == ["task-sent"]


# -- the relay --------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_each_queue_gets_its_messages_in_the_order_of_their_transactions(site: OutboxSite):
    """Of several producers, each of which sends to two queues."""
    queues = [site.queue_named("a"), site.queue_named("b")]

    def produce(name: str) -> None:
        for number in range(40):
            with site.engine.begin() as connection, in_transaction(connection):
                record(site, f"{name} {number}", queue=queues[number % 2])

    threads = [threading.Thread(target=produce, args=(name,)) for name in "xyz"]
    relay = site.relay("--batch", "7")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: site.left() == 0)
    assert stop(relay) == 0

    for parity, queue in enumerate(queues):
        came = arguments(site.drain(queue))
        for name in "xyz":
            assert [each for each in came if each.startswith(name)] == [f"{name} {n}" for n in range(parity, 40, 2)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_that_is_told_to_stop_exits_cleanly(site: OutboxSite, number: signal.Signals):
    relay = site.relay()
    relay.signal(number)

    assert relay.process.wait(10) == 0
    assert "Traceback" not in relay.text


def test_of_two_relays_one_works_and_the_other_takes_over_from_the_killed_one(site: OutboxSite):
    first = site.relay()
    second = site.relay(wait=False)
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "first")
    eventually(lambda: site.left() == 0)
    assert "relaying to" not in second.text
    first.kill()
    killed_at = time.monotonic()
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "second")
    eventually(lambda: site.left() == 0, 20)

    assert time.monotonic() - killed_at < 1 + 1 + 5, "a lease, a second, and what a busy machine needs"
    assert arguments(site.drain()) == ["first", "second"]


def test_a_stopped_relay_hands_over_at_once(make_outbox_site: MakeSite):
    """A lease of ten minutes does not matter."""
    site = make_outbox_site("redis")
    site.app.conf.sqlqueue_outbox_options = {"lease_for": 600, "schema": site.database.schema}
    site.environment["TEST_CONF"] = site.environment["TEST_CONF"].replace('"lease_for": 1', '"lease_for": 600')
    first = site.relay()
    second = site.relay(wait=False)
    assert stop(first) == 0

    eventually(lambda: "relaying to" in second.text, 20)


def test_a_broker_that_is_away_is_waited_for(site: OutboxSite):
    """Nothing is lost; what was sent but not confirmed may come twice."""
    broker = port_of(site.broker)
    port = free_port()
    relay = site.relay(broker=site.broker.replace(f":{broker[1]}", f":{port}"))
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "early")
    eventually(lambda: "trying again" in relay.text, 30)
    assert site.left() == 1
    texts = [*map(str, range(20)), "break here", *map(str, range(20, 40))]
    with Proxy(broker, port) as proxy:
        eventually(lambda: site.left() == 0, 30)
        proxy.break_at(b"break here", for_good=True)
        said = relay.text.count("trying again")
        with site.engine.begin() as connection, in_transaction(connection):
            record(site, *texts)
        eventually(lambda: relay.text.count("trying again") > said, 30)
        assert proxy.broken == 1
    with Proxy(broker, port):
        eventually(lambda: site.left() == 0, 30)

    assert list(dict.fromkeys(arguments(site.drain()))) == ["early", *texts]
    assert "Traceback" not in relay.text


def test_once_tells_by_its_exit_that_the_broker_is_away(site: OutboxSite):
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "x")
    scheme = urlsplit(site.environment["TEST_BROKER_URL"]).scheme
    relay = site.relay("--once", wait=False, broker=f"{scheme}://127.0.0.1:1//")

    assert relay.process.wait(30) == 1
    assert site.left() == 1


def test_once_leaves_the_work_to_a_relay_that_is_at_it(make_outbox_site: MakeSite):
    site = make_outbox_site("redis")
    site.relay()
    once = site.relay("--once", wait=False)

    assert once.process.wait(30) == 0
    assert "another relay is at work" in once.text


def test_a_relay_that_slept_leaves_the_work_to_the_other(make_outbox_site: MakeSite):
    site = make_outbox_site("redis")
    sleeper = site.relay()
    sleeper.signal(signal.SIGSTOP)
    site.relay()
    sleeper.signal(signal.SIGCONT)
    eventually(lambda: "another relay has taken over" in sleeper.text, 20)
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, *map(str, range(300)))
    eventually(lambda: site.left() == 0)

    assert arguments(site.drain()) == [*map(str, range(300))]


def test_nothing_is_sent_after_its_time(site: OutboxSite):
    """A relay that slept in the middle of a batch may have lost its turn: it asks first."""
    letter = Letter("x", {"content_type": "text/plain"}, {"exchange": "", "routing_key": site.queue, "mandatory": False})
    broker = Broker(site.app)
    passed = broker.pass_on([Parcel(1, letter)], until=time.monotonic())
    broker.close()

    assert (passed.taken, passed.refused, passed.trouble) == (set(), {}, None)


def test_a_database_that_is_away_is_waited_for(make_outbox_site: MakeSite):
    site = make_outbox_site("redis")
    url = make_url(site.database.url)
    server, port = (url.host or "127.0.0.1", url.port or 5432), free_port()
    away = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "x")
    relay = site.relay(outbox=f"sqlqueue+{away}", wait=False)
    eventually(lambda: relay.text.count("the database is away") > 1, 30)
    with Proxy(server, port):
        eventually(lambda: site.left() == 0, 30)

    assert arguments(site.drain()) == ["x"]
    assert "Traceback" not in relay.text


@pytest.mark.requires(Capability.LISTEN_NOTIFY)
def test_a_database_that_cuts_the_relays_connections_repeats_nothing(database: Any, site: OutboxSite):
    """What was sent is remembered until the database is back, and forgotten then."""
    url = make_url(site.database.url).update_query_dict({"application_name": f"relay_{site.queue}"})
    relay = site.relay("--batch", "10", outbox=f"sqlqueue+{url.render_as_string(hide_password=False)}")
    cut = text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = :name")

    def cut_all() -> int:
        with site.engine.begin() as connection:
            return connection.execute(cut, {"name": f"relay_{site.queue}"}).scalar_one()

    for number in range(8):
        with site.engine.begin() as connection, in_transaction(connection):
            record(site, *(f"{number}.{each}" for each in range(10)))
        eventually(cut_all)
    eventually(lambda: site.left() == 0)

    assert arguments(site.drain()) == [f"{number}.{each}" for number in range(8) for each in range(10)]
    assert relay.process.poll() is None


# -- what cannot be passed on -----------------------------------------------------------------


def test_what_rabbitmq_refuses_is_dead_and_the_others_go_on(make_outbox_site: MakeSite, caplog: pytest.LogCaptureFixture):
    """Another type of exchange than there is, an exchange that nobody declared, and one without a queue."""
    site = make_outbox_site("rabbitmq")
    with site.app.connection_for_write() as connection:
        Exchange(f"{site.queue}-x", type="fanout", durable=False, auto_delete=True)(connection.default_channel).declare()
        bad = [
            {"exchange": f"{site.queue}-x", "routing_key": "k", "declare": [Exchange(f"{site.queue}-x", type="topic")]},
            {"exchange": "nowhere", "routing_key": "k", "declare": []},
            {"exchange": "amq.topic", "routing_key": f"{site.queue}.nobody", "declare": []},
        ]
        with site.engine.begin() as transaction, in_transaction(transaction):
            for number, options in enumerate(bad):
                record(site, f"good {number}")
                record(site, f"bad {number}", **options)
            record(site, "last")
        site.relay_all()

    assert list(dict.fromkeys(arguments(site.drain()))) == ["good 0", "good 1", "good 2", "last"]
    assert sorted(json.loads(dead.body)[0][0] for dead in site.dead()) == ["bad 0", "bad 1", "bad 2"]
    assert {dead.reason for dead in site.dead()} == {Reason.REFUSED}
    assert [entry.levelname for entry in caplog.records if "kept as dead" in entry.message] == ["ERROR"] * 3
    assert "no queue is bound to exchange 'amq.topic'" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 256},
        {"priority": -1},
        {"headers": {"n": 2**70}},
        {"headers": {"k" * 300: 1}},
        {"correlation_id": "x" * 300},
    ],
    ids=["priority", "negative", "number", "name", "id"],
)
def test_what_amqp_cannot_say_is_dead_and_the_others_arrive_once(make_outbox_site: MakeSite, options: dict[str, Any]):
    site = make_outbox_site("rabbitmq")
    with site.engine.begin() as transaction, in_transaction(transaction):
        for number in range(20):
            record(site, f"good {number}")
        record(site, "bad", **options)
        record(site, "last")
    site.relay_all()

    assert arguments(site.drain()) == [*(f"good {number}" for number in range(20)), "last"]
    assert [dead.reason for dead in site.dead()] == [Reason.REFUSED]


def test_what_redis_refuses_is_dead_and_the_others_go_on(make_outbox_site: MakeSite, caplog: pytest.LogCaptureFixture):
    """The key of a queue is something else."""
    redis = pytest.importorskip("redis")
    site = make_outbox_site("redis")
    wrong = site.queue_named("wrong")
    client = redis.Redis.from_url(site.environment["TEST_BROKER_URL"])
    client.set(wrong, "no list")
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "before")
        record(site, "refused", queue=wrong)
        record(site, "after")
    site.relay_all()
    client.delete(wrong)

    assert arguments(site.drain()) == ["before", "after"]
    assert [(dead.queue, dead.reason) for dead in site.dead()] == [(OUTBOX, Reason.REFUSED)]
    assert "WRONGTYPE" in caplog.text


def test_a_full_queue_is_waited_for(make_outbox_site: MakeSite):
    """RabbitMQ says that it did not take it. It is not lost, and nothing overtakes it."""
    site = make_outbox_site("rabbitmq")
    full = Queue(site.queue_named("full"), queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "1", "2", "3", queue=full)
    relay = site.relay()
    eventually(lambda: "a queue may be full" in relay.text)
    came: list[str] = []
    eventually(lambda: came.extend(arguments(site.drain(full.name))) or site.left() == 0, 90)
    came += arguments(site.drain(full.name))

    assert list(dict.fromkeys(came)) == ["1", "2", "3"]
    assert site.dead() == []


def test_a_damaged_message_is_dead_and_the_others_go_on(make_outbox_site: MakeSite):
    site = make_outbox_site("redis")
    process_for(site.database).messages.publish([NewMessage(OUTBOX, b"x", "{}")])
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "good")
    site.relay_all()

    assert arguments(site.drain()) == ["good"]
    assert [dead.reason for dead in site.dead()] == [Reason.UNDECODABLE]


def test_a_task_that_was_refused_is_passed_on_once_it_is_redriven(make_outbox_site: MakeSite):
    site = make_outbox_site("rabbitmq")
    exchange = Exchange(f"{site.queue}-later", type="direct", auto_delete=True)
    options = {"exchange": exchange.name, "routing_key": "k", "declare": []}
    with site.engine.begin() as connection, in_transaction(connection):
        record(site, "x", **options)
    site.relay_all()
    assert len(site.dead()) == 1
    with site.app.connection_for_write() as connection:
        Queue(site.queue, exchange, routing_key="k")(connection.default_channel).declare()
    process_for(site.database).messages.redrive([dead.id for dead in site.dead()])
    site.relay_all()

    assert arguments(site.drain()) == ["x"]
    assert Counter(dead.reason for dead in site.dead()) == {}


def test_a_killed_relay_loses_nothing(site: OutboxSite):
    """kill -9 again and again while tasks pass. A kill may repeat what was just sent, a batch at most."""
    tasks, batch, kills = 2000, 50, 3
    with site.engine.begin() as connection, in_transaction(connection):
        bulk_publish(site.task("record", str(number)) for number in range(tasks))
    for _ in range(kills):
        left = site.left()
        relay = site.relay("--batch", str(batch))
        eventually(lambda left=left: site.left() < left, 30)
        relay.kill()
    assert site.left() > 0
    eventually(lambda: Relay(site.app, site.outbox_options).run(once=True) and site.left() == 0)
    came = [int(each) for each in arguments(site.drain())]

    assert set(came) == set(range(tasks))
    assert len(came) - tasks <= kills * batch
    assert list(dict.fromkeys(came)) == list(range(tasks)), "each comes first in its place"
