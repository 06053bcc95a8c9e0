"""Which write of a result wins, and when a chord is due."""

from __future__ import annotations

import pytest

from kombu_sqlqueue.messages import Lease
from kombu_sqlqueue.results import NewResult, Part, Tally, wins

FIRST, SECOND, NEXT_MESSAGE = Lease(7, 1), Lease(7, 2), Lease(8, 1)


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED", "STARTED", "RETRY", "PROGRESS"])
@pytest.mark.parametrize("by", [None, FIRST, NEXT_MESSAGE])
def test_success_never_changes(state: str, by: Lease | None):
    """Neither by a later delivery nor by a client."""
    assert not wins(state, by, over="SUCCESS", stored_by=FIRST)


@pytest.mark.parametrize("over", ["FAILURE", "REVOKED"])
def test_another_final_state_yields_only_to_a_later_delivery(over: str):
    """A redelivery, a redrive or a new request; not the same delivery once more."""
    assert wins("STARTED", SECOND, over=over, stored_by=FIRST)
    assert wins("SUCCESS", NEXT_MESSAGE, over=over, stored_by=SECOND)
    assert not wins("SUCCESS", FIRST, over=over, stored_by=FIRST)
    assert not wins("FAILURE", FIRST, over=over, stored_by=SECOND)


def test_a_task_on_its_way_is_written_by_the_same_delivery_or_a_later_one():
    """What a lost delivery still has to say is not heard."""
    assert wins("SUCCESS", FIRST, over="STARTED", stored_by=FIRST)
    assert wins("STARTED", SECOND, over="PROGRESS", stored_by=FIRST)
    assert not wins("RETRY", FIRST, over="STARTED", stored_by=NEXT_MESSAGE)


def test_without_a_delivery_anything_but_success_is_replaced():
    """A client, or a worker on another broker: as with any other result backend."""
    assert wins("REVOKED", None, over="FAILURE", stored_by=FIRST)
    assert wins("SUCCESS", FIRST, over="REVOKED", stored_by=None)


def test_only_the_three_states_of_celery_are_final():
    """A user's own state is a step on the way."""
    assert [NewResult("t", state, b"").is_final for state in ("SUCCESS", "REVOKED", "RETRY", "DONE")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_part_is_known_by_its_task_and_its_place():
    """One task may stand at two places of a header."""
    assert len({Part("g", "t", place, b"").key for place in (0, 1, None)}) == 3


@pytest.mark.parametrize(
    ("tally", "due"),
    [
        (Tally(None, 0, 2, False), False),
        (Tally(2, 0, 1, False), False),
        (Tally(2, 0, 2, False), True),
        (Tally(2, 1, 2, False), False),
        (Tally(2, 1, 3, False), True),
        (Tally(2, 0, 2, True), False),
    ],
)
def test_a_chord_is_due_when_all_parts_are_back(tally: Tally, due: bool):
    """Not before its size is known, and only once."""
    assert tally.is_due is due
