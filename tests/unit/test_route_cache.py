"""What is remembered of routes, and for how long."""

from __future__ import annotations

import pytest

from kombu_sqlqueue.route_cache import DIRECT_FOR, NOBODY_FOR, NOBODY_IF_TOLD, ROUTES, TOPIC_FOR, RouteCache
from kombu_sqlqueue.routing import Binding, Exchange, Kind, Queue, RoutingTable


class Declared:
    """The reading half of a routing store, in memory, that counts how often it is asked."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind] = {}
        self.known: dict[str, Queue] = {}
        self.bound: list[Binding] = []
        self.asked = 0

    def declare(self, exchange: Exchange, *bindings: tuple[str, Queue]) -> None:
        self.kinds[exchange.name] = exchange.kind
        for key, queue in bindings:
            self.known[queue.name] = queue
            self.bound.append(Binding(exchange.name, queue.name, key))

    def table(self, exchange, routing_key):
        self.asked += 1
        kind = self.kinds.get(exchange, Kind.DIRECT)
        told = [
            b for b in self.bound if b.exchange == exchange and (kind is not Kind.DIRECT or b.routing_key == routing_key)
        ]
        return RoutingTable(kind, tuple((b.routing_key, self.known[b.queue]) for b in told))

    def route(self, exchange, routing_key):
        self.asked += 1
        return [self.known.get(routing_key) or Queue(routing_key)]


class Stopwatch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store():
    return Declared()


@pytest.fixture
def watch():
    return Stopwatch()


@pytest.fixture
def cache(store, watch):
    return RouteCache(store, now=watch)


def names(queues):
    return [queue.name for queue in queues]


def test_a_direct_route_is_believed_for_a_while(store, watch, cache):
    store.declare(Exchange("x"), ("k", Queue("one")))
    assert names(cache.route("x", "k")) == ["one"]
    store.declare(Exchange("x"), ("k", Queue("two")))

    watch.now += DIRECT_FOR * 0.9
    assert names(cache.route("x", "k")) == ["one"]
    watch.now += DIRECT_FOR * 0.2
    assert names(cache.route("x", "k")) == ["one", "two"]


def test_a_direct_route_to_nowhere_is_never_believed(store, cache):
    assert cache.route("x", "k") == []
    store.declare(Exchange("x"), ("k", Queue("one")))

    assert names(cache.route("x", "k")) == ["one"]


def test_a_direct_route_to_a_queue_that_may_vanish_is_never_believed(store, cache):
    store.declare(Exchange("x"), ("k", Queue("reply", auto_delete=True)))
    assert names(cache.route("x", "k")) == ["reply"]
    store.bound.clear()

    assert cache.route("x", "k") == []


def test_a_fanout_is_always_read(store, cache):
    store.declare(Exchange("x", Kind.FANOUT), ("", Queue("one")))
    assert names(cache.route("x", "")) == ["one"]
    store.declare(Exchange("x", Kind.FANOUT), ("", Queue("two")))

    assert names(cache.route("x", "")) == ["one", "two"]


def test_a_topic_with_many_keys_is_read_once_a_while(store, watch, cache):
    store.declare(Exchange("events", Kind.TOPIC), ("#", Queue("all")), ("task.*", Queue("tasks")))
    assert names(cache.route("events", "task.sent")) == ["all", "tasks"]
    assert names(cache.route("events", "worker.online")) == ["all"]
    assert store.asked == 1

    watch.now += TOPIC_FOR * 1.1
    cache.route("events", "worker.online")
    assert store.asked == 2


def test_transient_messages_that_nobody_wants_cost_one_look_a_while(store, watch, cache):
    store.declare(Exchange("events", Kind.TOPIC))
    for _ in range(100):
        assert cache.route("events", "task.sent", transient=True) == []
    assert store.asked == 1

    store.declare(Exchange("events", Kind.TOPIC), ("#", Queue("flower")))
    watch.now += NOBODY_FOR * 1.1
    assert names(cache.route("events", "task.sent", transient=True)) == ["flower"]


def test_who_is_told_of_new_bindings_believes_longer_that_there_are_none(store, watch, cache):
    store.declare(Exchange("events", Kind.TOPIC))
    cache.told_until = watch.now + 2 * NOBODY_IF_TOLD
    for _ in range(9):
        assert cache.route("events", "task.sent", transient=True) == []
        watch.now += NOBODY_IF_TOLD / 10
    assert store.asked == 1

    store.declare(Exchange("events", Kind.TOPIC), ("#", Queue("flower")))
    cache.forget()
    assert names(cache.route("events", "task.sent", transient=True)) == ["flower"]


@pytest.mark.parametrize("why", ["missed", "deaf", "long ago"])
def test_who_may_not_have_been_told_of_a_new_binding_asks_again(store, watch, cache, why):
    store.declare(Exchange("events", Kind.TOPIC))
    cache.told_until = watch.now + 2 * NOBODY_IF_TOLD
    cache.route("events", "task.sent", transient=True)
    watch.now += NOBODY_FOR * 1.1
    if why == "missed":
        cache.doubt()
    elif why == "deaf":
        cache.told_until = 0.0
    else:
        watch.now += NOBODY_IF_TOLD

    cache.route("events", "task.sent", transient=True)
    assert store.asked == 2


def test_a_topic_that_leads_somewhere_is_read_as_often_though_we_are_told(store, watch, cache):
    store.declare(Exchange("events", Kind.TOPIC), ("#", Queue("flower", auto_delete=True)))
    cache.told_until = watch.now + 2 * NOBODY_IF_TOLD
    cache.route("events", "task.sent", transient=True)
    store.bound.clear()

    watch.now += TOPIC_FOR * 1.1
    assert cache.route("events", "task.sent", transient=True) == []


def test_a_lasting_message_that_nobody_wanted_before_is_looked_up_again(store, cache):
    store.declare(Exchange("x", Kind.TOPIC))
    assert cache.route("x", "k") == []
    store.declare(Exchange("x", Kind.TOPIC), ("k", Queue("late")))

    assert names(cache.route("x", "k")) == ["late"]


def test_a_queue_named_through_the_default_exchange_is_asked_for_once_a_while(store, watch, cache):
    assert cache.route("", "celery") == cache.route("", "celery") == [Queue("celery")]
    assert store.asked == 1

    watch.now += DIRECT_FOR * 1.1
    cache.route("", "celery")
    assert store.asked == 2


def test_what_this_process_changed_is_seen_at_once(store, cache):
    store.declare(Exchange("x"), ("k", Queue("one")))
    cache.route("x", "k")
    cache.route("", "q")
    store.declare(Exchange("x"), ("k", Queue("two")))
    store.known["q"] = Queue("q", durable=False)
    cache.forget()

    assert names(cache.route("x", "k")) == ["one", "two"]
    assert cache.route("", "q") == [Queue("q", durable=False)]


def test_an_answer_that_was_under_way_when_something_changed_is_not_remembered(store, cache):
    store.declare(Exchange("x", Kind.TOPIC), ("#", Queue("one")))
    read = store.table

    def overtaken(exchange, routing_key):
        table = read(exchange, routing_key)
        store.declare(Exchange("x", Kind.TOPIC), ("#", Queue("two")))
        cache.forget()
        store.table = read
        return table

    store.table = overtaken
    assert names(cache.route("x", "k")) == ["one"]
    assert names(cache.route("x", "k")) == ["one", "two"]


def test_any_number_of_keys_takes_bounded_memory(cache):
    for number in range(3 * ROUTES):
        cache.route("", f"reply-{number}")

    assert len(cache._queues) <= ROUTES
