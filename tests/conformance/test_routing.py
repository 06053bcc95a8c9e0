"""Exchanges, queues, bindings and consumers, as the contract of the routing store says."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from kombu_sqlqueue.errors import ConfigurationError, NotFoundError
from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.routing import Binding, Exchange, Kind, Queue, QueueArguments, pack_arguments
from kombu_sqlqueue.sql.routing import SQLRoutingStore

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

BRIEF = QueueArguments(expires_for=10 * SECOND)


@pytest.fixture
def routing(database):
    return SQLRoutingStore(database)


@pytest.fixture
def lessee(store):
    return store.enrol("one", lease_for=HOUR)


def names(queues):
    return [queue.name for queue in queues]


def rows(database, table):
    """How many rows there are: nothing may stay behind."""
    return database.statement(lambda tx: tx.execute(select(func.count()).select_from(table)).scalar_one())


def put(store, queue, count=1, **fields):
    store.publish([NewMessage(queue=queue, body=b"x", envelope="{}", **fields) for _ in range(count)])


def bind(routing, exchange, queue, key="", **queue_fields):
    routing.declare_queue(Queue(queue, **queue_fields))
    routing.bind(Binding(exchange, queue, key))


def let_go(store, clock, *, after):
    """The lessees are silent for `after` and taken for dead."""
    clock.advance(after)
    store.reclaim(max_reclaims=5, limit=100)


def race(*works):
    """Do all at the same moment in threads of their own; returns what they raised."""
    barrier = threading.Barrier(len(works))

    def run(work):
        barrier.wait(timeout=10)
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(run, work) for work in works]
        return [error for future in futures if (error := future.exception(timeout=30))]


# -- exchanges ----------------------------------------------------------------------------


def test_an_exchange_is_as_it_was_declared(routing):
    events = Exchange("events", Kind.TOPIC, durable=False, auto_delete=True, arguments=pack_arguments({"a": [1, None]}))

    assert routing.exchange("events") is None
    assert routing.declare_exchange(events) == events
    assert routing.exchange("events") == events


def test_the_first_declaration_of_an_exchange_stands(routing):
    routing.declare_exchange(Exchange("x", Kind.FANOUT))

    assert routing.declare_exchange(Exchange("x", Kind.DIRECT)) == Exchange("x", Kind.FANOUT)


def test_deleting_an_exchange_leaves_its_queues(routing):
    routing.declare_exchange(Exchange("x", Kind.FANOUT))
    bind(routing, "x", "q")

    assert routing.delete_exchange("x")
    assert (routing.exchange("x"), routing.bindings("x"), routing.route("x", "")) == (None, [], [])
    assert routing.queue("q") == Queue("q")


def test_an_exchange_in_use_can_be_spared(routing):
    routing.declare_exchange(Exchange("x", Kind.FANOUT))
    bind(routing, "x", "q")

    assert not routing.delete_exchange("x", if_unused=True)
    assert routing.unbind(Binding("x", "q"))
    assert routing.delete_exchange("x", if_unused=True)
    assert routing.delete_exchange("x", if_unused=True)


def test_an_auto_delete_exchange_goes_with_its_last_binding(routing):
    routing.declare_exchange(Exchange("x", Kind.FANOUT, auto_delete=True))
    bind(routing, "x", "one")
    bind(routing, "x", "two")

    routing.unbind(Binding("x", "one"))
    assert routing.exchange("x")
    routing.delete_queue("two")
    assert routing.exchange("x") is None


# -- queues -------------------------------------------------------------------------------


def test_a_queue_is_as_it_was_declared(routing):
    arguments = QueueArguments.parse(
        {"x-expires": 1500, "x-message-ttl": 0, "x-max-priority": 9, "x-odd": {"b": 1, "a": "é\0"}}
    )
    queue = Queue("q", durable=False, exclusive=True, auto_delete=True, arguments=arguments)

    assert routing.queue("q") is None
    assert routing.declare_queue(queue)
    assert routing.queue("q") == queue
    assert not routing.declare_queue(queue)


def test_a_queue_declared_otherwise_is_changed_and_keeps_what_it_has(routing, store):
    bind(routing, "x", "q", "k")
    put(store, "q")

    assert routing.declare_queue(Queue("q", durable=False))
    assert routing.queue("q") == Queue("q", durable=False)
    assert names(routing.route("x", "k")) == ["q"]
    assert store.counts(["q"])[0].ready == 1


def test_names_that_differ_a_little_are_different(routing):
    for name in ("q", "Q", "q ", "é", "e", "q%", "'; drop table"):
        bind(routing, "x", name, name)

    assert [names(routing.route("x", name)) for name in ("q", "Q", "q ", "é")] == [["q"], ["Q"], ["q "], ["é"]]
    assert names(routing.queues()) == sorted(["q", "Q", "q ", "é", "e", "q%", "'; drop table"])


def test_the_longest_names_fit(routing):
    exchange, queue, key = (letter * 63 + "abc" for letter in "\U0001f600\U0001f601\U0001f602")
    bind(routing, exchange, queue, key)

    assert names(routing.route(exchange, key)) == [queue]


def test_declaring_at_the_same_moment_is_no_error(routing):
    def declare():
        routing.declare_exchange(Exchange("x", Kind.TOPIC))
        bind(routing, "x", "q", "k")

    assert race(*[declare] * 4) == []
    assert routing.bindings("x") == [Binding("x", "q", "k")]


def test_deleting_a_queue_deletes_what_waits_and_says_how_much(routing, store, lessee, database):
    bind(routing, "x", "q", "k")
    put(store, "q", 3)
    put(store, "q", due_at=2**62)
    put(store, "other")
    [held] = store.claim(["q"], limit=1, lessee=lessee)

    assert routing.delete_queue("q") == 3
    assert (routing.queue("q"), routing.bindings()) == (None, [])
    assert [counts.queue for counts in store.counts() if counts.ready] == ["other"]
    assert store.ack([held.lease]) == {held.lease}


def test_deleting_what_is_not_there_is_no_error(routing, store):
    assert routing.delete_queue("nobody") == 0
    put(store, "undeclared")
    assert routing.delete_queue("undeclared") == 1


def test_a_queue_that_is_not_empty_can_be_spared(routing, store):
    routing.declare_queue(Queue("q"))
    put(store, "q", due_at=2**62)

    assert routing.delete_queue("q", if_empty=True) is None
    assert routing.queue("q")
    store.purge("q")
    assert routing.delete_queue("q", if_empty=True) == 0
    assert routing.queue("q") is None


def test_a_queue_in_use_can_be_spared(routing, lessee):
    routing.declare_queue(Queue("q"))
    routing.consume("q", lessee)

    assert routing.delete_queue("q", if_unused=True) is None
    routing.cancel("q", lessee)
    assert routing.delete_queue("q", if_unused=True) == 0


# -- bindings and routes ------------------------------------------------------------------


def test_a_direct_exchange_asks_for_the_same_key(routing):
    routing.declare_exchange(Exchange("x"))
    bind(routing, "x", "one", "k")
    bind(routing, "x", "two", "k")
    bind(routing, "x", "three", "K")

    assert names(routing.route("x", "k")) == ["one", "two"]
    assert routing.route("x", "") == []
    assert routing.route("elsewhere", "k") == []


def test_an_undeclared_exchange_is_direct(routing):
    bind(routing, "x", "q", "#")

    assert routing.route("x", "k") == []
    assert names(routing.route("x", "#")) == ["q"]


def test_a_topic_exchange_matches_words(routing):
    routing.declare_exchange(Exchange("x", Kind.TOPIC))
    bind(routing, "x", "all", "#")
    bind(routing, "x", "tasks", "task.*")
    bind(routing, "x", "tasks", "*.sent")

    assert names(routing.route("x", "task.sent")) == ["all", "tasks"]
    assert names(routing.route("x", "worker.heartbeat")) == ["all"]


def test_a_fanout_exchange_reaches_every_queue_once(routing):
    routing.declare_exchange(Exchange("x", Kind.FANOUT))
    bind(routing, "x", "b", "one")
    bind(routing, "x", "b", "two")
    bind(routing, "x", "a")

    assert names(routing.route("x", "whatever")) == ["a", "b"]


def test_an_exchange_to_which_nothing_is_bound_still_tells_its_kind(routing):
    routing.declare_exchange(Exchange("x", Kind.TOPIC))

    assert routing.table("x", "k").kind is Kind.TOPIC


def test_a_route_tells_how_the_queue_is_declared_now(routing):
    bind(routing, "x", "q", "k")
    routing.declare_queue(Queue("q", arguments=BRIEF))

    assert routing.route("x", "k") == [Queue("q", arguments=BRIEF)]


def test_the_default_exchange_leads_to_any_queue_by_its_name(routing):
    routing.declare_queue(Queue("declared", arguments=BRIEF))

    assert routing.route("", "declared") == [Queue("declared", arguments=BRIEF)]
    assert routing.route("", "undeclared") == [Queue("undeclared")]
    with pytest.raises(ConfigurationError):
        routing.route("", "")


def test_a_routing_key_that_cannot_be_kept_is_refused(routing):
    for key in ("k" * 256, "a\0b"):
        with pytest.raises(ConfigurationError):
            routing.route("x", key)


def test_binding_twice_is_binding_once(routing):
    routing.declare_queue(Queue("q"))
    binding = Binding("x", "q", "k", pack_arguments({"a": 1}))

    assert routing.bind(binding)
    assert not routing.bind(binding)
    assert routing.bindings("x") == routing.bindings() == [binding]


def test_only_a_declared_queue_can_be_bound(routing):
    with pytest.raises(NotFoundError, match="no queue 'q' to bind to 'x': declare it first"):
        routing.bind(Binding("x", "q"))


def test_an_unbound_queue_gets_nothing(routing):
    bind(routing, "x", "q", "k")
    bind(routing, "x", "q", "l")

    assert routing.unbind(Binding("x", "q", "k"))
    assert not routing.unbind(Binding("x", "q", "k"))
    assert routing.route("x", "k") == []
    assert names(routing.route("x", "l")) == ["q"]


def test_a_binding_never_outlives_its_queue(routing):
    for _ in range(10):
        routing.declare_queue(Queue("q"))
        raised = race(lambda: routing.bind(Binding("x", "q")), lambda: routing.delete_queue("q"))

        assert all(isinstance(error, NotFoundError) for error in raised)
        assert (routing.queue("q"), routing.bindings()) == (None, [])


def test_declaring_again_writes_nothing(routing, database):
    def declare():
        routing.declare_exchange(Exchange("x", Kind.TOPIC))
        bind(routing, "x", "q", "k", auto_delete=True, arguments=BRIEF)

    declare()
    with database.engine.begin() as tx:
        # Whoever wrote would now have to wait for this transaction, or to fail.
        tx.execute(database.tables.queue.update().values(durable=1))
        tx.execute(database.tables.binding.update().values(arguments="{}"))
        tx.execute(database.tables.exchange.update().values(durable=1))
        declare()


# -- consumers ----------------------------------------------------------------------------


def test_consumers_are_counted_over_all_processes(routing, store, lessee):
    other = store.enrol("two", lease_for=HOUR)
    routing.declare_queue(Queue("q"))

    assert [routing.consume("q", who) for who in (lessee, lessee, other)] == [True] * 3
    assert routing.consumers("q") == 3
    routing.cancel("q", lessee)
    assert routing.consumers("q") == 2
    assert routing.consumers("unknown") == 0


def test_an_undeclared_queue_may_be_consumed(routing, lessee):
    assert not routing.consume("q", lessee)
    assert routing.consumers("q") == 1
    assert not routing.cancel("q", lessee)
    assert routing.consumers("q") == 0


def test_the_consumers_of_the_dead_do_not_count(routing, store, clock):
    routing.declare_queue(Queue("q"))
    routing.consume("q", store.enrol("one", lease_for=SECOND))
    let_go(store, clock, after=2 * SECOND)

    assert routing.consumers("q") == 0


def test_the_consumers_of_who_resigned_do_not_count(routing, store, lessee):
    routing.declare_queue(Queue("q"))
    routing.consume("q", lessee)
    store.resign(lessee)

    assert routing.consumers("q") == 0


@pytest.mark.parametrize("fields", [{"auto_delete": True}, {"exclusive": True}])
def test_an_auto_delete_queue_goes_with_its_last_consumer(routing, store, lessee, database, fields):
    other = store.enrol("two", lease_for=HOUR)
    bind(routing, "x", "q", **fields)
    routing.consume("q", lessee)
    routing.consume("q", other)
    put(store, "q", 3)
    put(store, "q", due_at=2**62)
    [begun, held] = store.claim(["q"], limit=2, lessee=lessee)
    store.start([begun.lease])

    assert not routing.cancel("q", other)
    assert routing.cancel("q", lessee)
    assert (routing.queue("q"), routing.bindings()) == (None, [])
    assert store.ack([begun.lease, held.lease]) == {begun.lease}
    assert rows(database, database.tables.message) == rows(database, database.tables.consumer) == 0


def test_a_lasting_queue_stays_without_consumers(routing, store, lessee):
    routing.declare_queue(Queue("q"))
    routing.consume("q", lessee)
    put(store, "q")

    assert not routing.cancel("q", lessee)
    assert routing.queue("q")
    assert store.counts(["q"])[0].ready == 1


def test_of_two_that_cancel_at_once_one_deletes_the_queue(routing, store):
    for _ in range(5):
        lessees = [store.enrol(name, lease_for=HOUR) for name in "ab"]
        bind(routing, "x", "q", auto_delete=True)
        for lessee in lessees:
            routing.consume("q", lessee)

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(lambda lessee: routing.cancel("q", lessee), lessees)) == [False, True]


# -- expiry -------------------------------------------------------------------------------


def test_a_queue_unused_for_its_time_is_swept(routing, store, clock, database):
    bind(routing, "x", "q", arguments=BRIEF)
    bind(routing, "x", "lasting")
    put(store, "q", 3)
    put(store, "q", due_at=2**62)

    clock.advance(9 * SECOND)
    assert routing.sweep(limit=10) == []
    clock.advance(SECOND)
    assert routing.sweep(limit=10) == ["q"]
    assert names(routing.queues()) == ["lasting"]
    assert names(routing.route("x", "")) == ["lasting"]
    assert rows(database, database.tables.message) == 0


def test_a_touched_queue_lives_on(routing, clock):
    for name in ("touched", "declared", "left"):
        routing.declare_queue(Queue(name, arguments=BRIEF))
    clock.advance(9 * SECOND)
    routing.touch(["touched", "lasting"])
    routing.declare_queue(Queue("declared", arguments=BRIEF))
    clock.advance(9 * SECOND)

    assert routing.sweep(limit=10) == ["left"]


def test_a_consumed_queue_never_expires_and_then_starts_anew(routing, store, clock):
    lessee = store.enrol("one", lease_for=10 * HOUR)
    routing.declare_queue(Queue("q", arguments=BRIEF))
    routing.consume("q", lessee)
    clock.advance(HOUR)
    assert routing.sweep(limit=10) == []

    routing.cancel("q", lessee)
    clock.advance(9 * SECOND)
    assert routing.sweep(limit=10) == []
    clock.advance(SECOND)
    assert routing.sweep(limit=10) == ["q"]


def test_a_queue_whose_consumer_died_expires_after_its_time(routing, store, clock, database):
    routing.declare_queue(Queue("q", arguments=BRIEF))
    routing.consume("q", store.enrol("one", lease_for=SECOND))
    let_go(store, clock, after=HOUR)

    assert routing.sweep(limit=10) == []
    clock.advance(10 * SECOND)
    assert routing.sweep(limit=10) == ["q"]
    assert rows(database, database.tables.consumer) == 0


def test_an_auto_delete_queue_whose_consumers_died_is_swept(routing, store, clock, database):
    bind(routing, "x", "q", auto_delete=True)
    routing.consume("q", store.enrol("one", lease_for=SECOND))
    put(store, "q", 2500)
    let_go(store, clock, after=HOUR)

    assert routing.sweep(limit=10) == ["q"]
    tables = database.tables
    assert [rows(database, table) for table in (tables.message, tables.consumer, tables.binding)] == [0, 0, 0]


def test_an_auto_delete_queue_is_spared_while_anyone_lives(routing, store, lessee, clock):
    routing.declare_queue(Queue("q", auto_delete=True))
    routing.consume("q", store.enrol("dead", lease_for=SECOND))
    clock.advance(2 * SECOND)
    store.renew(lessee)
    store.reclaim(max_reclaims=5, limit=100)
    routing.consume("q", lessee)
    clock.advance(60 * SECOND)

    assert routing.sweep(limit=10) == []
    assert routing.consumers("q") == 1


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(routing, clock):
    routing.declare_queue(Queue("q", auto_delete=True))
    clock.advance(HOUR)

    assert routing.sweep(limit=10) == []


def test_who_declares_a_queue_of_the_dead_has_time_to_consume(routing, store, clock):
    """A worker killed and started again under its name finds its mailbox, and keeps it."""
    routing.declare_queue(Queue("q", auto_delete=True))
    routing.consume("q", store.enrol("dead", lease_for=SECOND))
    let_go(store, clock, after=HOUR)
    routing.declare_queue(Queue("q", auto_delete=True))

    assert routing.sweep(limit=10) == []
    routing.consume("q", store.enrol("anew", lease_for=HOUR))
    clock.advance(60 * SECOND)
    assert routing.sweep(limit=10) == []


def test_a_sweep_is_bounded(routing, clock):
    for name in "abcde":
        routing.declare_queue(Queue(name, arguments=BRIEF))
    clock.advance(HOUR)
    swept = [routing.sweep(limit=2) for _ in range(4)]

    assert [len(batch) for batch in swept] == [2, 2, 1, 0]
    assert sorted(name for batch in swept for name in batch) == list("abcde")


def test_sweeping_at_once_deletes_once(routing, clock):
    for name in "abcdef":
        routing.declare_queue(Queue(name, arguments=BRIEF))
    clock.advance(HOUR)
    swept = []

    assert race(*[lambda: swept.extend(routing.sweep(limit=10))] * 3) == []
    swept += routing.sweep(limit=10)
    assert sorted(swept) == list("abcdef")
