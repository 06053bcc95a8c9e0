"""How long who waits for results relies on being woken."""

from __future__ import annotations

from kombu_sqlqueue.waiting import Pace


def pauses(pace: Pace, looks: int) -> list[float]:
    """The pauses before looks that find nothing."""
    found = []
    for _ in range(looks):
        found.append(round(pace.pause, 2))
        pace.polled(0)
    return found


def test_without_wake_ups_it_looks_often_at_first():
    """And at least twice a second later on."""
    pace = Pace()

    assert pauses(pace, 5) == [0.01, 0.01, 0.02, 0.03, 0.05]
    assert pauses(pace, 20)[-1] == 0.5


def test_wake_ups_are_trusted_once_one_brought_something():
    """A few looks for what was on its way when we began to listen, then one a second."""
    pace = Pace()
    pace.woken()

    assert pauses(pace, 5) == [0.01, 0.05, 0.25, 1.0, 1.0]


def test_wake_ups_are_no_longer_trusted_when_something_came_without_one():
    """As behind a pooler that keeps notifications to itself."""
    pace = Pace()
    pace.woken()
    pauses(pace, 5)
    pace.polled(1)

    assert not pace.trusts
    assert pace.pause == 0.01
