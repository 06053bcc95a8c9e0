"""Who waits is woken when something changed that it wants to know, and by nothing else where that can be told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.errors import StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.routing import Binding, Exchange, Kind, Queue
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability, Waker
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.routing import SQLRoutingStore
from kombu_sqlqueue.sql.waiters import SQLWaiters
from kombu_sqlqueue.topics import ROUTES, queue_topic

from ..databases import requires
from .sending import SECOND, after, claim, claim_one, message, send

#: Long enough for a busy machine; nobody waits it out when all is well.
SOON = 10.0
#: Long enough for an announcement that should not come.
A_WHILE = 0.1

listens = requires(Capability.LISTEN_NOTIFY)


@pytest.fixture
def waker(database: Database) -> Iterator[Waker]:
    """It listens already."""
    waker = database.waker()
    assert waker is not None
    assert waker.wait(SOON) is None
    yield waker
    waker.close()


@pytest.fixture
def wait_for(database: Database) -> Callable[..., None]:
    """Record that somebody waits for these queues for the next minute."""

    def arm(*queues: str) -> None:
        topics = [queue_topic(queue) for queue in queues]
        SQLWaiters(database).arm("somebody", topics, armed_for=timedelta(minutes=1))

    return arm


def test_the_first_wait_says_that_anything_may_have_changed(database: Database):
    waker = database.waker()
    assert waker is not None
    assert waker.wait(SOON) is None
    waker.close()


def test_without_a_change_a_wait_ends_at_its_timeout(waker: Waker):
    began = time.monotonic()

    assert waker.wait(A_WHILE) == frozenset()
    assert time.monotonic() - began >= A_WHILE * 0.9


def test_a_publish_wakes_who_waits(waker: Waker, store: SQLMessageStore, wait_for: Callable[..., None]):
    wait_for("q")
    waker.wait(A_WHILE)
    send(store, "a")

    heard = waker.wait(SOON)
    assert heard is None or heard == {"queue:q"}


def test_a_wait_can_be_interrupted(waker: Waker):
    threading.Timer(0.02, waker.interrupt).start()
    began = time.monotonic()

    assert waker.wait(SOON) == frozenset()
    assert time.monotonic() - began < SOON / 2
    assert waker.wait(A_WHILE) == frozenset()


def test_an_interruption_before_the_wait_is_not_lost(waker: Waker):
    waker.interrupt()
    began = time.monotonic()

    waker.wait(SOON)
    assert time.monotonic() - began < SOON / 2


@listens
def test_only_what_somebody_waits_for_is_announced(waker: Waker, store: SQLMessageStore, wait_for: Callable[..., None]):
    wait_for("one", "two")
    store.publish([message(queue="one"), message(queue="one"), message(queue="other")])
    store.publish([message(queue="two")])

    heard = set()
    while len(heard) < 2:
        heard |= waker.wait(SOON)
    assert heard == {"queue:one", "queue:two"}
    assert waker.wait(A_WHILE) == frozenset()


@listens
def test_nothing_is_announced_to_who_has_not_waited_for_long(
    waker: Waker, store: SQLMessageStore, wait_for: Callable[..., None], clock: FakeClock
):
    wait_for("q")
    clock.advance(61 * SECOND)
    send(store, "a")

    assert waker.wait(A_WHILE) == frozenset()


@listens
def test_what_is_rolled_back_is_not_announced(
    waker: Waker, store: SQLMessageStore, wait_for: Callable[..., None], database: Database
):
    wait_for("q")
    with database.engine.connect() as connection:
        store.within(connection).publish([message()])
        connection.rollback()

    assert waker.wait(A_WHILE) == frozenset()


@listens
def test_whatever_makes_a_message_ready_is_announced(
    waker: Waker, store: SQLMessageStore, wait_for: Callable[..., None], lessee: int, clock: FakeClock
):
    """And a delayed one, too: who sleeps until the next due moment has to reckon again."""
    wait_for("q")

    def announces(act: Callable[[], object], topic: str = "queue:q") -> bool:
        act()
        return waker.wait(SOON) == {topic}

    assert announces(lambda: send(store, "a", task_id="id"))
    first = claim_one(store, lessee).lease
    assert announces(lambda: store.release([first]))
    assert announces(lambda: store.nack(claim_one(store, lessee).lease, max_reclaims=5))
    claim(store, lessee)
    assert announces(lambda: (store.resign(lessee), store.reclaim(max_reclaims=5, limit=10)))
    other = store.enrol("other", lease_for=timedelta(hours=1))
    last = claim_one(store, other).lease
    store.nack(last, max_reclaims=0)
    assert announces(lambda: store.redrive([last.message_id]))
    assert announces(lambda: send(store, "later", due_at=after(clock, SECOND)), "later:q")
    clock.advance(SECOND)
    assert announces(lambda: store.promote(limit=10))


@listens
def test_a_new_binding_of_a_topic_exchange_is_announced_to_all(waker: Waker, database: Database):
    """Also to who waits only from the moment at which it is being made."""
    routing = SQLRoutingStore(database)
    for kind in (Kind.TOPIC, Kind.DIRECT):
        routing.declare_exchange(Exchange(kind.value, kind))
    routing.declare_queue(Queue("q"))

    assert routing.bind(Binding("direct", "q", "key"))
    assert waker.wait(A_WHILE) == frozenset()
    assert routing.bind(Binding("topic", "q", "#"))
    assert waker.wait(SOON) == {ROUTES}
    assert not routing.bind(Binding("topic", "q", "#"))
    assert waker.wait(A_WHILE) == frozenset()


@listens
def test_who_promotes_looks_by_itself_and_is_not_told(
    waker: Waker, store: SQLMessageStore, wait_for: Callable[..., None], clock: FakeClock
):
    wait_for("q")
    send(store, "a", due_at=clock.now() + 1)
    assert waker.wait(SOON) == {"later:q"}
    send(store, "b", due_at=after(clock, SECOND))
    assert waker.wait(SOON) == {"later:q"}

    clock.advance(SECOND / 2)
    assert store.promote(limit=10, by="somebody").ready == 1
    assert waker.wait(A_WHILE) == frozenset()

    clock.advance(SECOND)
    assert store.promote(limit=10, by="somebody else").ready == 1
    assert waker.wait(SOON) == {"queue:q"}


@listens
def test_who_listens_hears_of_a_broken_line_and_gets_a_new_one(
    waker: Waker, store: SQLMessageStore, wait_for: Callable[..., None], database: Database
):
    wait_for("q")
    said = "format('LISTEN \"sqlqueue_%s\"', CAST(CAST(:waiter AS regclass) AS oid))"
    hang_up = text(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query = {said}")
    waiter = database.tables.waiter.fullname
    assert database.statement(lambda tx: tx.scalar(hang_up, {"waiter": waiter})) >= 1

    def listen_on() -> None:
        # The server's last words may come before the end of the line.
        while True:
            waker.wait(SOON)

    with pytest.raises(StoreUnavailableError, match="listens is gone"):
        listen_on()
    assert waker.wait(SOON) is None
    send(store, "a")
    assert waker.wait(SOON) == {"queue:q"}


@listens
def test_what_is_announced_while_nobody_looks_is_heard_later(
    waker: Waker, store: SQLMessageStore, wait_for: Callable[..., None]
):
    wait_for("q")
    send(store, "a")
    send(store, "b")

    assert waker.wait(SOON) == {"queue:q"}


def test_a_database_without_a_file_wakes_too():
    database = Database(DatabaseOptions("sqlite://"))
    database.run(lambda tx: database.tables.metadata.create_all(tx))
    waker = database.waker()
    assert waker is not None
    waker.wait(SOON)
    assert waker.wait(A_WHILE) == frozenset()
    SQLMessageStore(database).publish([message()])

    assert waker.wait(SOON) is None
    waker.close()
    database.dispose()


@listens
def test_who_finds_the_tables_by_the_search_path_is_woken_too(
    database_options: DatabaseOptions, store: SQLMessageStore, wait_for: Callable[..., None]
):
    """One process has the option `schema`, another a role or a URL that leads to the same tables."""
    url = make_url(database_options.url).update_query_dict({"options": f"-csearch_path={database_options.schema}"})
    other = Database(DatabaseOptions(url.render_as_string(hide_password=False)))
    waker = other.waker()
    assert waker is not None
    wait_for("q")
    try:
        waker.wait(A_WHILE)
        send(store, "a")
        assert waker.wait(SOON) == {"queue:q"}
    finally:
        waker.close()
        other.dispose()
