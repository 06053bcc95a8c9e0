"""What is sent in bulk is stored in one go: all of it or nothing, in order."""

from __future__ import annotations

import functools
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Signature, Task, chain, chord, group
from celery.signals import before_task_publish
from kombu.exceptions import EncodeError, OperationalError
from kombu.serialization import registry
from sqlalchemy import event, select

from kombu_sqlqueue import bulk_publish
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..databases import migrate
from .workers import Site, eventually

#: Queues besides the app's own.
OTHERS = ("by_name", "by_option", "of_all", "of_1", "of_2")


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """The body of any task here."""


@pytest.fixture
def app(database_options: DatabaseOptions) -> Iterator[Celery]:
    url = f"sqlqueue+{database_options.url}"
    app = Celery("bulk", broker=url, backend=url, set_as_current=False)
    app.conf.broker_transport_options = {"schema": database_options.schema}
    app.conf.task_default_queue = "bulk"

    # The first use brings the transport, and with it what it does to groups.
    app.send_task("noop")
    messages = process_for(database_options).messages
    messages.purge("bulk")
    yield app
    for queue in ("bulk", *OTHERS):
        messages.purge(queue)
    app.close()
    process_for(database_options).close()


@pytest.fixture
def commits(app: Celery, database_options: DatabaseOptions) -> Iterator[list[str]]:
    """The commits that this thread asks for; others of the process have their own work."""
    seen: list[str] = []
    thread = threading.get_ident()

    def note(connection) -> None:
        if threading.get_ident() == thread:
            seen.append("commit")

    engine = process_for(database_options).database.engine
    event.listen(engine, "commit", note)
    yield seen
    event.remove(engine, "commit", note)


def waiting(database_options: DatabaseOptions) -> int:
    return sum(counts.ready for counts in process_for(database_options).messages.counts(["bulk"]))


def test_a_group_is_one_transaction(app: Celery, commits: list[str], database_options: DatabaseOptions):
    group(app.signature("noop", (i,)) for i in range(50)).apply_async()

    assert commits.count("commit") <= 2  # SQLite ends what only read with one, too
    assert waiting(database_options) == 50


def test_bulk_publish_is_one_transaction_and_keeps_the_order(
    app: Celery, commits: list[str], database_options: DatabaseOptions
):
    results = bulk_publish(app.signature("noop", (i,)) for i in range(50))

    assert commits.count("commit") <= 2
    messages = process_for(database_options).messages
    lessee = messages.enrol("reader", lease_for=timedelta(minutes=1))
    claimed = messages.claim(["bulk"], limit=50, lessee=lessee)
    messages.ack([delivery.lease for delivery in claimed])
    assert [f'"id":"{result.id}"' in delivery.envelope for result, delivery in zip(results, claimed, strict=True)] == [
        True
    ] * 50


def test_the_first_of_a_slow_generator_need_not_wait_for_the_last(app: Celery, database_options: DatabaseOptions):
    seen: list[int] = []

    def slowly():
        for _ in range(3):
            time.sleep(0.15)
            seen.append(waiting(database_options))
            yield app.signature("noop")

    chord(slowly())(app.signature("noop"))
    # Celery asks for one more before it sends one.
    assert seen == [0, 0, 1]
    assert waiting(database_options) == 3


def test_bulk_publish_is_never_sent_in_parts(app: Celery, database_options: DatabaseOptions):
    with pytest.raises(EncodeError):
        bulk_publish([*(app.signature("noop", (i,)) for i in range(400)), app.signature("noop", (object(),))])
    assert waiting(database_options) == 0


def test_bulk_publish_of_nothing():
    assert bulk_publish([]) == []


def test_an_error_in_the_middle_sends_nothing(app: Celery, database_options: DatabaseOptions):
    signatures = [app.signature("noop", (1,)), app.signature("noop", (object(),)), app.signature("noop", (3,))]
    with pytest.raises(EncodeError):
        bulk_publish(signatures)
    with pytest.raises(EncodeError):
        group(signatures).apply_async()

    assert waiting(database_options) == 0
    app.send_task("noop")
    assert waiting(database_options) == 1


def test_a_group_within_a_group_and_a_chord_are_sent_with_it(app: Celery, database_options: DatabaseOptions):
    sig = app.signature
    inner = group(sig("noop", (i,)) for i in range(3))
    group(sig("noop"), inner, chain(sig("noop"), sig("noop")), chord([sig("noop"), sig("noop")], sig("noop"))).apply_async()

    assert waiting(database_options) == 1 + 3 + 1 + 2


def test_a_bulk_that_does_not_fit_raises_and_leaves_nothing(tmp_path: Path):
    options = DatabaseOptions(f"sqlite:///{tmp_path}/queue.db")
    migrate(options)
    database = process_for(options).database
    event.listen(database.engine, "connect", lambda connection, record: connection.execute("PRAGMA max_page_count = 200"))
    app = Celery("bulk", broker=f"sqlqueue+{options.url}", set_as_current=False)
    app.send_task("noop", queue="bulk")

    big = [app.signature("noop", ("x" * 200_000,), queue="bulk") for _ in range(10)]
    with pytest.raises(OperationalError, match="disk is full"):
        group(big).apply_async(retry=False)
    with pytest.raises(OperationalError, match="disk is full"):
        bulk_publish(big, retry_policy={"max_retries": 1, "interval_start": 0.01})
    assert waiting(options) == 1
    process_for(options).close()


def test_workers_run_all_of_a_bulk(site: Site):
    site.worker()
    bulk_publish(site.task("record", f"bulk {i}") for i in range(120))

    eventually(lambda: len(site.marks()) == 120)
    assert sorted(site.marks()) == sorted(f"bulk {i}" for i in range(120))
    eventually(lambda: site.waiting() == 0)


def rows_of(database_options: DatabaseOptions) -> list[Any]:
    """All messages, in the order in which they were stored."""
    database = process_for(database_options).database
    m = database.tables.message
    return database.statement(lambda tx: tx.execute(select(m).order_by(m.c.id)).all())


def queues_of(database_options: DatabaseOptions) -> Counter[str]:
    return Counter(row.queue for row in rows_of(database_options))


def route(app: Celery, routes: Any) -> None:
    """As if these routes had been there from the start."""
    app.conf.task_routes = routes
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()


def test_each_task_of_a_bulk_goes_where_it_would_go_alone(app: Celery, database_options: DatabaseOptions):
    """By its name, its own options, those of the bulk, or what a router makes of its arguments; queues are declared once."""

    def by_argument(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
        return {"queue": f"of_{args[0]}"} if name == "routed" else None

    for name in ("plain", "special", "routed"):
        app.task(name=name)(do_nothing)
    route(app, {"special": {"queue": "by_name"}})
    sigs = [app.signature(name, (n,)) for n in range(2) for name in ("plain", "special", "plain")]
    bulk_publish([*sigs, app.signature("plain", (2,), options={"queue": "by_option", "priority": 3})])
    assert queues_of(database_options) == Counter({"bulk": 4, "by_name": 2, "by_option": 1})

    bulk_publish(sigs, queue="of_all")
    assert queues_of(database_options)["of_all"] == 6

    route(app, [by_argument])
    bulk_publish([app.signature("routed", (n,)) for n in (1, 2, 1)])
    assert {name: many for name, many in queues_of(database_options).items() if name.startswith("of_")} == {
        "of_all": 6,
        "of_1": 2,
        "of_2": 1,
    }


ALIKE: list[dict[str, Any]] = [
    {},
    {"queue": "by_option", "priority": 3},
    {"ignore_result": True, "time_limit": 5, "soft_time_limit": 4, "shadow": "other"},
    {"countdown": 60, "expires": 90},
    {"headers": {"tenant": "a"}, "compression": "gzip"},
    {"serializer": "pickle"},
    {"link": Signature("special")},
]
ARGUMENTS: list[tuple[Any, dict[str, Any]]] = [
    ((1, "a"), {"b": [2]}),
    ((), {}),
    (('ü \ud83d\ude00 "quoted"\n',), {"ä": None}),
    ((datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.5")), {"deep": {"er": [{"x": 1.5}] * 300}}),
]


@pytest.mark.parametrize("options", ALIKE, ids=str)
def test_a_message_of_a_bulk_is_what_it_would_be_alone(
    app: Celery, database_options: DatabaseOptions, options: dict[str, Any]
):
    app.task(name="plain", time_limit=7)(do_nothing)
    signatures = [app.signature("plain", args, dict(kwargs)) for args, kwargs in ARGUMENTS]
    alone = [signature.apply_async(**options) for signature in signatures]
    bulk = bulk_publish(signatures, **options)
    own = bulk_publish([signature.clone().set(**options) for signature in signatures])

    rows = rows_of(database_options)
    assert [row.task_id for row in rows] == [result.id for result in [*alone, *bulk, *own]]
    for start in range(len(ARGUMENTS)):
        first, *others = map(told, rows[start :: len(ARGUMENTS)])
        assert others == [first, first]
    assert {result.ignored for result in [*bulk, *own]} == {alone[0].ignored}


def told(row: Any) -> dict[str, Any]:
    """All that a message says, but for its own id and the moments at which it was sent."""
    envelope = json.loads(row.envelope)
    for name in ("eta", "expires"):
        if envelope["headers"][name] is not None:
            envelope["headers"][name] = "some time"
    text = json.dumps(envelope, sort_keys=True).replace(row.task_id, "its id")
    return {"envelope": text, "body": row.body, "queue": row.queue, "priority": row.priority, "task": row.task}


def test_arguments_that_a_task_does_not_take_are_refused_in_a_bulk_too(app: Celery, database_options: DatabaseOptions):
    @app.task(name=f"one_{uuid.uuid4()}")
    def one(x: int) -> None: ...

    with pytest.raises(TypeError, match="missing 1 required"):
        bulk_publish([one.s(1), one.s(2), one.s()])
    with pytest.raises(EncodeError):
        bulk_publish([one.s(1), one.s(2), one.s(object())])
    assert rows_of(database_options) == []


def test_who_listens_or_wraps_sees_each_message_of_a_bulk(app: Celery, monkeypatch: pytest.MonkeyPatch):
    app.task(name="plain")(do_nothing)
    signatures = [app.signature("plain", (n,)) for n in range(3)]
    heard: list[Any] = []

    def hear(headers: Any = None, **_: Any) -> None:
        heard.append(headers["id"])
        headers["tenant"] = "a"

    before_task_publish.connect(hear)
    try:
        assert [result.id for result in bulk_publish(signatures)] == heard
    finally:
        before_task_publish.disconnect(hear)

    plain, traced = Task.apply_async, []

    @functools.wraps(plain)
    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        traced.append(self.name)
        return plain(self, *args, **options)

    monkeypatch.setattr(Task, "apply_async", apply_async)
    bulk_publish([app.signature("plain", (n,)) for n in range(3)])
    assert traced == ["plain"] * 3


def test_an_option_that_is_none_is_not_given(app: Celery, database_options: DatabaseOptions):
    app.task(name="plain")(do_nothing)
    bulk_publish([app.signature("plain", options={"queue": queue}) for queue in ("of_1", "of_2")], queue=None)
    assert queues_of(database_options) == Counter({"of_1": 1, "of_2": 1})


def test_a_signature_without_arguments_has_none(app: Celery, database_options: DatabaseOptions):
    """As it comes from JSON that others wrote; what Celery refuses is refused."""
    app.task(name="plain", typing=False)(do_nothing)
    first = app.signature("plain")
    bulk_publish([first, Signature({**first, "args": None, "kwargs": None}, app=app)])
    one, other = map(told, rows_of(database_options))
    assert one == other
    with pytest.raises(TypeError, match="must be a list or tuple"):
        bulk_publish([first, Signature({**first, "args": "ab"}, app=app)])


def test_each_app_of_a_bulk_sends_its_own(app: Celery, database_options: DatabaseOptions):
    other = Celery("other", broker=app.conf.broker_url, set_as_current=False)
    other.conf.update(broker_transport_options=app.conf.broker_transport_options, task_default_queue="by_name")
    for each in (app, other):
        each.task(name="plain")(do_nothing)
    bulk_publish([app.signature("plain"), other.signature("plain"), app.signature("plain")])
    assert queues_of(database_options) == Counter({"bulk": 2, "by_name": 1})
    other.close()


def test_a_task_may_send_in_a_way_of_its_own(app: Celery, database_options: DatabaseOptions):
    """At once or later, as many do after a commit, when the producer of the bulk is somebody else's."""
    later: list[Any] = []

    class Deferring(Task):
        def apply_async(self, *args: Any, **options: Any) -> None:
            later.append(functools.partial(super().apply_async, *args, **options))

    app.task(name="deferring", base=Deferring, shared=False)(do_nothing)
    bulk_publish([app.signature("deferring", (n,)) for n in range(3)])
    assert rows_of(database_options) == []
    for send in later:
        send()
    assert len(rows_of(database_options)) == 3

    app.task(name="watched", shared=False)(do_nothing)
    task, seen = app.tasks["watched"], []
    send_it = task.apply_async
    task.apply_async = lambda *args, **options: seen.append(args[0]) or send_it(*args, **options)
    bulk_publish([app.signature("watched", (n,)) for n in range(3)])
    assert seen == [(0,), (1,), (2,)]


def test_a_serializer_of_ones_own_that_makes_json_serializes_all(
    app: Celery, database_options: DatabaseOptions, monkeypatch: pytest.MonkeyPatch
):
    knows_sets = registry._encoders["json"]._replace(encoder=lambda value: json.dumps(value, default=sorted))
    monkeypatch.setitem(registry._encoders, "sets", knows_sets)
    app.conf.task_serializer = "sets"
    app.task(name="plain")(do_nothing)
    bulk_publish([app.signature("plain", ({2, 1},)) for _ in range(3)])
    assert [json.loads(row.body)[0] for row in rows_of(database_options)] == [[[1, 2]]] * 3


def test_json_may_come_as_bytes(app: Celery, database_options: DatabaseOptions, monkeypatch: pytest.MonkeyPatch):
    plain = registry._encoders["json"]
    quick = plain._replace(encoder=lambda value: json.dumps(value).encode())
    monkeypatch.setitem(registry._encoders, "json", quick)
    app.task(name="plain")(do_nothing)
    bulk_publish([app.signature("plain", (n,)) for n in range(3)])
    assert [json.loads(row.body)[0] for row in rows_of(database_options)] == [[0], [1], [2]]


def test_a_task_that_sends_in_bulk_is_the_parent_of_all(site: Site):
    site.worker(app="tests.celery.bulk_tasks")
    sender = site.app.send_task("send_in_bulk", (3,))
    children = sender.get(timeout=60)
    results = [site.app.AsyncResult(child).get(timeout=60) for child in children]

    assert results == [[sender.id, sender.id]] * 3
    assert [child.id for child in sender.children] == children
