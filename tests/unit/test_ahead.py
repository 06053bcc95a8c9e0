"""How much is claimed ahead of a prefetch window, and how long it may wait there."""

from __future__ import annotations

from kombu_sqlqueue.ahead import Ahead
from kombu_sqlqueue.messages import Delivery, Lease


class Watch:
    """Seconds that pass when we say so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def deliveries(*ids: int) -> list[Delivery]:
    return [Delivery(Lease(each, 1), "q", 0, b"", "{}", 0) for each in ids]


def limit_at(rate: float, *, room: int, seconds: float = 1.0) -> int:
    """What is claimed when so many messages a second have been started."""
    watch = Watch()
    ahead = Ahead(monotonic=watch)
    for _ in range(int(rate * seconds)):
        ahead.started()
    watch.now += seconds
    return ahead.limit(room)


def test_nothing_is_claimed_ahead_before_anything_ran():
    assert Ahead(monotonic=Watch()).limit(8) == 8


def test_long_tasks_get_their_window():
    """Ten a second: half a task within the twentieth of a second that may be claimed ahead."""
    assert [limit_at(10, room=room) for room in (1, 5, 8)] == [1, 5, 8]


def test_short_tasks_get_what_starts_within_a_moment():
    assert limit_at(1000, room=1) == 48
    assert limit_at(400, room=4) == 24
    assert limit_at(100_000, room=8) == 100


def test_the_window_is_filled_whatever_its_size():
    assert limit_at(100_000, room=500) == 500


def test_the_pace_is_that_of_the_last_moment():
    watch = Watch()
    ahead = Ahead(monotonic=watch)
    for _ in range(1000):
        ahead.started()
    watch.now += 1
    assert ahead.limit(1) == 48
    ahead.started()
    watch.now += 1
    assert ahead.limit(1) == 1


def test_what_is_put_comes_out_in_order():
    ahead = Ahead()
    ahead.put(deliveries(1, 2))
    ahead.put(deliveries(3))

    assert ahead.first == deliveries(1)[0]
    assert [ahead.take() for _ in range(4)] == [*deliveries(1, 2, 3), None]
    assert ahead.first is None


def test_what_nobody_takes_is_given_back():
    watch = Watch()
    ahead = Ahead(monotonic=watch)
    ahead.put(deliveries(1, 2, 3))
    watch.now += 0.05
    assert ahead.take() == deliveries(1)[0]
    watch.now += 0.09
    assert ahead.take_stale() == []
    watch.now += 0.02
    assert ahead.take_stale() == deliveries(2, 3)
    assert not ahead


def test_one_queue_is_taken_back_and_the_rest_stays_in_order():
    ahead = Ahead()
    ahead.put(deliveries(1, 2, 3, 4))
    assert ahead.take_back(lambda delivery: delivery.lease.message_id % 2 == 0) == deliveries(2, 4)
    assert [ahead.take(), ahead.take()] == deliveries(1, 3)
