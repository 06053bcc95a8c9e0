"""Leases and deliveries: values and their rules."""

from __future__ import annotations

import pytest

from kombu_sqlqueue.messages import Delivery, Lease, Reason
from kombu_sqlqueue.sql.lessees import fate


def test_a_lease_is_known_by_its_tag():
    lease = Lease(123456789012, 7)

    assert lease.tag == "123456789012:7"
    assert Lease.parse(lease.tag) == lease


@pytest.mark.parametrize(
    "tag", ["", "1", "1:", ":1", "1:2:3", "a:b", "-1:2", "1:2 ", "1:²", "\u0663:\u0661", None, 12, b"1:2"]
)
def test_the_tag_of_another_transport_is_no_lease(tag: object):
    assert Lease.parse(tag) is None


@pytest.mark.parametrize(("delivery", "redelivered"), [(1, False), (2, True)])
def test_any_delivery_after_the_first_is_a_redelivery(delivery: int, redelivered: bool):
    assert Delivery(Lease(1, delivery), "q", 0, b"", "{}", reclaims=0).redelivered is redelivered


@pytest.mark.parametrize(
    ("started", "reclaims", "max_reclaims", "expected"),
    [
        (False, 0, 5, None),
        (False, 4, 5, None),
        (False, 5, 5, Reason.RECLAIMS),
        (False, 0, 0, Reason.RECLAIMS),
        (True, 0, 5, Reason.WORKER_LOST),
        (True, 9, 5, Reason.WORKER_LOST),
    ],
)
def test_what_becomes_of_a_message_that_was_lost(started: bool, reclaims: int, max_reclaims: int, expected: Reason | None):
    assert fate(started=started, reclaims=reclaims, max_reclaims=max_reclaims) is expected
