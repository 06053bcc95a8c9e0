"""Which queues want a message: key matching, tables, arguments and names."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.routing import (
    NAME_BYTES,
    Binding,
    Exchange,
    Kind,
    Queue,
    QueueArguments,
    RoutingTable,
    pack_arguments,
    topic_matches,
    unpack_arguments,
)

SECOND = timedelta(seconds=1)

words = st.sampled_from(["a", "b", "ab", "", "é"])
routing_keys = st.lists(words, max_size=6).map(".".join)
binding_keys = st.lists(st.one_of(words, st.sampled_from(["*", "#"])), max_size=6).map(".".join)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
)


def slowly_matches(pattern: list[str], words: list[str]) -> bool:
    """The definition, word by word: * takes one, # takes none or one and stays."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return slowly_matches(rest, words) or (bool(words) and slowly_matches(pattern, words[1:]))
    return bool(words) and first in ("*", words[0]) and slowly_matches(rest, words[1:])


def split(key: str) -> list[str]:
    return key.split(".") if key else []


# -- topic keys ---------------------------------------------------------------------------


@given(binding_keys, routing_keys)
def test_a_topic_matches_as_its_definition_says(binding_key, routing_key):
    assert topic_matches(binding_key, routing_key) == slowly_matches(split(binding_key), split(routing_key))


@given(routing_keys)
def test_a_hash_matches_every_key(routing_key):
    assert topic_matches("#", routing_key)


@given(routing_keys)
def test_a_key_without_wildcards_matches_itself_only(routing_key):
    assert topic_matches(routing_key, routing_key)
    assert not topic_matches(routing_key, routing_key + ".more")


@pytest.mark.parametrize(
    ("binding_key", "routing_key", "matches"),
    [
        ("task.*", "task.sent", True),
        ("task.*", "task", False),
        ("task.*", "task.sent.twice", False),
        ("task.#", "task", True),
        ("task.#", "task.sent.twice", True),
        ("#.error", "error", True),
        ("*.stock.#", "usd.stock", True),
        ("*.stock.#", "stock.nasdaq", False),
        ("a.+", "a.b", False),
        ("a.b", "a.b\n", False),
        ("a*", "ab", False),
        ("", "", True),
        ("*", "", False),
    ],
)
def test_wildcards_stand_for_whole_words_and_nothing_else_is_special(binding_key, routing_key, matches):
    assert topic_matches(binding_key, routing_key) is matches


def test_many_hashes_do_not_take_for_ever():
    assert not topic_matches(".".join(["#", "a"] * 40), ".".join(["a"] * 200) + ".b")


# -- tables -------------------------------------------------------------------------------


@given(st.sampled_from(Kind), st.lists(st.tuples(binding_keys, st.sampled_from("xyz"))), routing_keys)
def test_a_table_names_each_queue_once_and_in_order(kind, entries, routing_key):
    table = RoutingTable(kind, tuple((key, Queue(name)) for key, name in entries))
    suits = {
        Kind.DIRECT: lambda key: key == routing_key,
        Kind.TOPIC: lambda key: slowly_matches(split(key), split(routing_key)),
        Kind.FANOUT: lambda key: True,
    }[kind]

    assert [queue.name for queue in table.route(routing_key)] == sorted({name for key, name in entries if suits(key)})


def test_an_exchange_without_a_type_is_direct():
    assert Kind.parse(None) is Kind.parse("") is Kind.DIRECT


def test_an_unknown_exchange_type_is_refused_with_those_that_exist():
    with pytest.raises(ConfigurationError, match="'headers' is not supported: use direct, topic, fanout"):
        Kind.parse("headers")


# -- names --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Exchange, Queue, lambda name: Binding(name, "q"), lambda name: Binding("x", name)])
def test_a_name_that_cannot_be_kept_is_refused(make):
    make("é" * (NAME_BYTES // 2))
    for name in ("", "é" * NAME_BYTES, "a\0b", "\ud800"):
        with pytest.raises(ConfigurationError):
            make(name)


def test_a_long_name_is_refused_with_the_limit():
    with pytest.raises(ConfigurationError, match=re.escape("has 256 bytes in UTF-8, at most 255 fit: shorten it")):
        Queue("q" * 256)


def test_a_binding_may_have_no_key_but_not_a_long_one():
    Binding("x", "q", "")
    with pytest.raises(ConfigurationError, match="routing key"):
        Binding("x", "q", "k" * 256)


# -- arguments ----------------------------------------------------------------------------


def test_arguments_are_parsed_to_durations_and_numbers():
    parsed = QueueArguments.parse(
        {
            "x-expires": 10_000,
            "x-message-ttl": 5000,
            "x-max-priority": 9,
            "x-max-length": 3,
            "x-dead-letter-exchange": "dead",
            "x-dead-letter-routing-key": "letters",
        }
    )

    assert parsed == QueueArguments(10 * SECOND, 5 * SECOND, 9, 3, "dead", "letters")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "x-expires": st.integers(1, 10**12),
            "x-message-ttl": st.integers(0, 10**12),
            "x-max-priority": st.integers(0, 255),
            "x-max-length": st.integers(0, 10**9),
            "x-dead-letter-exchange": names,
            "x-dead-letter-routing-key": names,
            "x-overflow": json_values,
        },
    )
)
def test_arguments_can_be_given_back(arguments):
    assert QueueArguments.parse(arguments).given() == arguments
    assert QueueArguments.parse(QueueArguments.parse(arguments).given()) == QueueArguments.parse(arguments)


def test_unknown_arguments_are_kept_and_told():
    parsed = QueueArguments.parse({"x-queue-type": "quorum", "x-single-active-consumer": True, "x-max-priority": 3})

    assert list(parsed.unsupported) == ["x-single-active-consumer"]
    assert list(QueueArguments(max_length=3, max_priority=3).unsupported) == ["x-max-length"]
    assert unpack_arguments(parsed.others) == {"x-queue-type": "quorum", "x-single-active-consumer": True}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-expires", 0),
        ("x-expires", "soon"),
        ("x-expires", 10**40),
        ("x-message-ttl", -1),
        ("x-message-ttl", 1.5),
        ("x-max-priority", 256),
        ("x-max-priority", True),
        ("x-max-length", -1),
        ("x-dead-letter-exchange", 7),
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=f"{name} is {re.escape(repr(value))}, but must be"):
        QueueArguments.parse({name: value})


@given(st.dictionaries(st.text(), json_values))
def test_packed_arguments_are_equal_whatever_their_order(arguments):
    backwards = dict(reversed(arguments.items()))

    assert pack_arguments(arguments) == pack_arguments(backwards)
    assert unpack_arguments(pack_arguments(arguments)) == arguments


@pytest.mark.parametrize(
    ("of_message", "of_queue", "lifetime"),
    [(None, None, None), (SECOND, None, SECOND), (None, SECOND, SECOND), (2 * SECOND, SECOND, SECOND)],
)
def test_a_message_lives_as_long_as_the_shorter_limit_allows(of_message, of_queue, lifetime):
    assert QueueArguments(message_ttl=of_queue).lifetime(of_message) == lifetime


def test_a_priority_is_bounded_by_the_queue():
    assert QueueArguments(max_priority=3).priority(200) == 3
    assert QueueArguments(max_priority=3).priority(1) == 1
    assert QueueArguments().priority(200) == 200


@pytest.mark.parametrize(
    ("queue", "is_temporary"),
    [
        (Queue("q"), False),
        (Queue("q", durable=False), False),
        (Queue("q", auto_delete=True), True),
        (Queue("q", exclusive=True), True),
        (Queue("q", arguments=QueueArguments(expires_for=SECOND)), True),
    ],
)
def test_a_temporary_queue_is_one_that_may_vanish(queue, is_temporary):
    assert queue.is_temporary is is_temporary
