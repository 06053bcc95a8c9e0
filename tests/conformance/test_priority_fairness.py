"""The higher priority first, within a queue; among queues each has its share and its turn."""

from __future__ import annotations

from collections import Counter

import pytest

from kombu_sqlqueue.sql.messages import SQLMessageStore

from .sending import claim, claim_one, names, send


def test_the_higher_priority_comes_first_and_first_in_first_out_within(store: SQLMessageStore, lessee: int):
    for name, priority in [("a", 0), ("b", 9), ("c", 0), ("d", 255), ("e", 9), ("f", 3)]:
        send(store, name, priority=priority)

    assert names(claim(store, lessee)) == ["d", "b", "e", "f", "a", "c"]


def test_the_higher_priority_comes_first_however_small_the_claims(store: SQLMessageStore, lessee: int):
    for name, priority in [("a", 0), ("b", 9), ("c", 0), ("d", 3)]:
        send(store, name, priority=priority)

    assert [claim_one(store, lessee).body.decode() for _ in range(4)] == ["b", "d", "a", "c"]


def test_what_is_urgent_overtakes_what_was_waiting(store: SQLMessageStore, lessee: int):
    send(store, *(f"routine {number}" for number in range(50)))
    claim(store, lessee, limit=20)
    send(store, "urgent", priority=1)

    assert names(claim(store, lessee, limit=1)) == ["urgent"]


def test_a_new_priority_is_seen_at_once_by_others(store: SQLMessageStore, lessee: int, database):
    publisher = SQLMessageStore(database)
    assert claim(store, lessee) == []
    for priority in (1, 2, 3):
        send(publisher, f"{priority}", priority=priority)
        assert names(claim(store, lessee)) == [f"{priority}"]


def test_queues_share_a_claim(store: SQLMessageStore, lessee: int):
    send(store, *(str(number) for number in range(100)), queue="full")
    send(store, "a", "b", "c", queue="other")
    send(store, *(str(number) for number in range(100)), queue="full too")

    found = Counter(delivery.queue for delivery in claim(store, lessee, "full", "other", "full too", limit=9))

    assert found == {"full": 3, "other": 3, "full too": 3}


def test_room_that_one_queue_leaves_is_filled_from_the_others(store: SQLMessageStore, lessee: int):
    send(store, *(str(number) for number in range(100)), queue="full")
    send(store, "a", queue="other")

    found = Counter(delivery.queue for delivery in claim(store, lessee, "empty", "other", "full", limit=10))

    assert found == {"full": 9, "other": 1}


@pytest.mark.parametrize("queues", [["full", "one"], ["one", "full"], ["full", "empty", "one", "full too"]])
def test_a_full_queue_does_not_starve_another_however_small_the_claims(
    store: SQLMessageStore, lessee: int, queues: list[str]
):
    send(store, *(str(number) for number in range(50)), queue="full", priority=9)
    send(store, *(str(number) for number in range(50)), queue="full too")
    send(store, "lone", queue="one")

    found = [claim_one(store, lessee, *queues).queue for _ in range(len(queues) + 1)]

    assert "one" in found


def test_the_priority_of_one_queue_means_nothing_to_another(store: SQLMessageStore, lessee: int):
    send(store, *"abcd", queue="urgent", priority=9)
    send(store, *"wxyz", queue="plain")

    assert names(claim(store, lessee, "plain", "urgent", limit=4)) == ["a", "b", "w", "x"]
