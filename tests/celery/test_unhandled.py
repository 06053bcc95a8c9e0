"""Tasks nobody knows, messages nobody can read, and revokes nobody hears."""

from __future__ import annotations

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

from .workers import Site, eventually


def test_an_unknown_task_is_parked_until_a_worker_knows_it(make_site):
    """A worker of an older release meets it first: no result tells of it, and the newer worker runs it."""
    site = make_site()
    result = site.task("record", "known now").clone()
    result.task = "tests.celery.tasks.later"
    old = site.worker()
    sent = result.apply_async()
    eventually(lambda: site.counts().dead == 1)
    assert sent.state == "PENDING"
    assert "parked" in old.text

    old.stop()
    site.environment["TEST_LATER"] = "1"
    site.worker()
    eventually(lambda: site.marks("known now"))
    eventually(lambda: site.counts().dead == 0)


def test_an_undecodable_message_is_kept_and_does_not_loop(site: Site):
    """Its body cannot be read: it is dead and visible, the worker lives and goes on."""
    with site.app.producer_or_acquire() as producer:
        producer.publish(
            b"{not json",
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "tests.celery.tasks.add", "id": "unreadable"},
        )
    site.worker()
    site.send("record", "after")

    eventually(lambda: site.marks("after"))
    eventually(lambda: site.counts().dead == 1)
    eventually(lambda: site.waiting() == 0)


def test_a_content_type_that_is_not_accepted_is_kept(site: Site):
    """A pickle for a worker that takes only JSON is never read, and not lost either."""
    site.send("add", 1, 2, serializer="pickle")
    site.worker()
    site.send("record", "after")

    eventually(lambda: site.marks("after"))
    eventually(lambda: site.counts().dead == 1)


def test_a_revoke_that_no_worker_heard_holds(site: Site):
    """Queued, delayed, and a part of a chord: none runs, each ends as REVOKED, though workers came later."""
    queued = site.send("record", "queued")
    delayed = site.send("record", "delayed", countdown=3)
    parts = [site.task("add", i, i) for i in range(2)]
    joined = chord(parts)(site.task("total"))
    part = joined.parent.results[0]
    site.app.control.revoke([queued.id, delayed.id, part.id])
    site.worker()

    for revoked in (queued, delayed, part):
        with pytest.raises(TaskRevokedError):
            revoked.get(timeout=60)
    eventually(lambda: joined.state == "FAILURE")
    assert site.marks() == []


def test_a_revoke_survives_a_restart_of_all_workers(site: Site):
    """No state file is needed."""
    first = site.worker()
    delayed = site.send("record", "delayed", countdown=6)
    delayed.revoke()
    eventually(lambda: "flagged as revoked" in first.text)
    first.stop()
    site.worker()

    with pytest.raises(TaskRevokedError):
        delayed.get(timeout=60)
    assert site.marks() == []


def test_a_revoke_by_stamp_holds_for_workers_to_come(site: Site):
    """Every task that carries the stamp, whenever its worker started."""
    stamped = site.task("record", "stamped")
    stamped.stamp(tenant="acme", append_stamps=False)
    result = stamped.apply_async()
    other = site.send("record", "other")
    site.app.control.revoke_by_stamped_headers({"tenant": ["acme"]})
    site.worker()

    other.get(timeout=60)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=60)
    assert site.marks() == ["other"]
