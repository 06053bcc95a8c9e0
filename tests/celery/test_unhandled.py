"""Tasks nobody knows, messages nobody can read, and revokes nobody hears."""

from __future__ import annotations

from collections.abc import Callable

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


@pytest.mark.parametrize("heard", [False, True], ids=["no worker up", "a worker up"])
@pytest.mark.parametrize("by", ["id", "stamp"])
def test_a_revoke_holds(site: Site, by: str, heard: bool):
    """Queued, delayed, and a part of a chord: none runs, each ends as REVOKED, whether a worker heard of it or came later."""
    if heard:
        # It has as much to do as it takes in: what follows waits in the database.
        site.worker("--prefetch-multiplier=1")
        busy = site.send("sleep_late", "busy", 5)
        eventually(lambda: site.marks("begin busy"))
    stamp = {"tenant": "acme"} if by == "stamp" else {}
    queued, delayed, part = site.task("record", "queued"), site.task("record", "delayed"), site.task("add", 1, 1)
    for task in (queued, delayed, part):
        if stamp:
            task.stamp(**stamp, append_stamps=False)
    joined = chord([part, site.task("add", 2, 2)])(site.task("total"))
    revoked = [queued.apply_async(), delayed.apply_async(countdown=3), joined.parent.results[0]]
    if stamp:
        site.app.control.revoke_by_stamped_headers(stamp)
    else:
        site.app.control.revoke([result.id for result in revoked])
    if heard:
        busy.get(timeout=60)
    else:
        site.worker()

    for result in revoked:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=60)
    eventually(lambda: joined.state == "FAILURE")
    eventually(lambda: site.waiting() == 0)
    assert not {"queued", "delayed"} & set(site.marks())


@pytest.mark.parametrize("serializer", ["msgpack", "pickle"])
def test_a_revoke_in_any_serializer_holds(make_site: Callable[..., Site], serializer: str):
    """Celery writes its commands as the app writes its tasks."""
    site = make_site(task_serializer=serializer, accept_content=["json", serializer])
    result = site.send("record", "revoked")
    result.revoke()
    site.worker()

    with pytest.raises(TaskRevokedError):
        result.get(timeout=60)
    assert site.marks() == []


def test_a_revoke_holds_for_longer_than_celery_keeps_it_in_mind(site: Site):
    """Three hours, once there are many: a worker that stays up is told again what it was told."""
    site.environment |= {"CELERY_WORKER_REVOKE_EXPIRES": "2", "CELERY_WORKER_REVOKES_MAX": "3"}
    site.worker()
    site.send("record", "revoked", countdown=8).revoke()
    site.send("record", "meanwhile", countdown=4)
    eventually(lambda: site.marks("meanwhile"))
    for _ in range(2):  # with these they are many: Celery forgets what is too old
        site.send("record", "other", countdown=8).revoke()

    eventually(lambda: site.waiting() == 0)
    assert site.marks() == ["meanwhile"]


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
