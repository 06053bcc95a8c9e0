"""Apps and workers that differ, side by side: in one database, at one queue, on one exchange."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from kombu_sqlqueue.process import process_for

from .workers import Site, eventually

#: Each with workers for minutes: what differs on MariaDB is tested elsewhere.
DATABASES = ("sqlite", "postgresql")

MakeSite = Callable[..., Site]


def test_apps_with_different_prefixes_share_a_database_and_nothing_else(make_site: MakeSite):
    """Queues of one name, remote control, events, revokes, results: neither sees the other's."""
    here = make_site()
    there = make_site(options={"table_prefix": "other_", "auto_migrate": True})
    there.worker("-E", name="there")
    result = here.send("echo", "here")
    assert there.send("echo", "there").get(timeout=60) == "there"

    assert here.counts().ready == 1
    assert here.app.control.ping(timeout=1) == []
    assert [list(reply) for reply in there.app.control.ping(timeout=5, limit=1)] == [["there@test"]]
    assert events_heard(there.app, within=30)
    assert not events_heard(here.app, within=4)
    there.app.control.revoke(result.id)
    here.worker(name="here")
    assert result.get(timeout=60) == "here"
    process_for(replace(here.database, table_prefix="other_", auto_migrate=True)).close()


def events_heard(app: Celery, *, within: float) -> list[Any]:
    """The first that comes, in so many seconds; a worker that sends events says every two that it lives."""
    heard: list[Any] = []

    def hear(event: Any) -> None:
        heard.append(event)
        receiver.should_stop = True

    with app.connection() as connection, contextlib.suppress(TimeoutError):
        receiver = app.events.Receiver(connection, handlers={"*": hear})
        # Not with a limit: that would be one of tries of a second each.
        receiver.capture(timeout=within)
    return heard


@pytest.mark.parametrize("serializer", ["pickle", "yaml", "msgpack"])
def test_apps_with_different_serializers_share_a_queue(make_site: MakeSite, serializer: str):
    """Who accepts a format takes it, who does not leaves it aside: nothing is lost, nobody stops."""
    pytest.importorskip({"pickle": "pickle", "yaml": "yaml", "msgpack": "msgpack"}[serializer])
    strict, broad = make_site(), make_site(accept_content=["json", serializer])
    for number in range(3):
        strict.send("record", f"json {number}")
        broad.send("record", f"{serializer} {number}", serializer=serializer)
    worker = strict.worker(name="strict")
    eventually(lambda: strict.counts().dead == 3 and len(strict.marks()) == 3)
    worker.stop()
    assert strict.marks() == [f"json {number}" for number in range(3)]

    broad.worker(name="broad")
    redrive(broad)
    eventually(lambda: {f"{serializer} {number}" for number in range(3)} <= set(broad.marks()))


def redrive(site: Site) -> None:
    process_for(site.database).messages.redrive([message.id for message in site.dead()])


def test_workers_that_accept_different_formats_live_side_by_side(make_site: MakeSite):
    """Each starts, works and answers its own, whatever commands of the others reach it that it cannot read."""
    sites = [
        make_site(accept_content=["json"]),
        make_site(accept_content=["json", "pickle"], task_serializer="pickle", result_serializer="pickle"),
        make_site(accept_content=["json", "msgpack"], result_serializer="msgpack"),
    ]
    for nth, site in enumerate(sites):
        site.worker("-Q", f"q{nth}", name=f"w{nth}")

    for nth, site in enumerate(sites):
        asked = site.app.control.inspect([f"w{nth}@test"], timeout=5)
        assert asked.ping() == {f"w{nth}@test": {"ok": "pong"}}
        assert site.send("echo", nth, queue=f"q{nth}").get(timeout=60) == nth


def test_only_the_living_are_shown(site: Site):
    """A killed worker does not answer, and neither does one that stopped; the other one does."""
    site.worker(name="living")
    stopped, killed = site.worker(name="stopped"), site.worker(name="killed")
    stopped.stop()
    killed.signal_group(signal.SIGKILL)
    killed.process.wait()

    assert site.app.control.inspect(timeout=2).ping() == {"living@test": {"ok": "pong"}}


def test_a_worker_serves_the_queues_it_is_told_to(make_site: MakeSite):
    """-Q names them, also such as no setting knows; -X leaves some out."""
    queues = {name: {"exchange": name, "routing_key": name} for name in ("a", "b", "c")}
    site = make_site(task_queues=queues)
    for queue in ("a", "b", "c", "d"):
        site.send("record", queue, queue=queue)
    site.worker("-X", "b,c", name="not-b-c")
    eventually(lambda: site.marks() == ["a"])
    site.worker("-Q", "b,d", name="b-d")
    eventually(lambda: set(site.marks()) == {"a", "b", "d"})

    assert site.counts("c").ready == 1


def test_a_queue_that_no_setting_knows_may_be_refused(make_site: MakeSite):
    """task_create_missing_queues=False: Celery refuses to send, and nothing is stored."""
    site = make_site(task_queues={"known": {"exchange": "known", "routing_key": "known"}}, task_create_missing_queues=False)
    with pytest.raises(Exception, match="unknown"):
        site.send("record", "lost", queue="unknown")
    site.send("record", "found", queue="known")
    site.worker("-Q", "known")

    eventually(lambda: site.marks() == ["found"])
    assert site.counts("unknown").ready == 0


def test_a_topic_exchange_leads_tasks_to_queues_with_priorities(make_site: MakeSite):
    """Each queue gets what its key matches, some tasks both, each with its priority."""
    topic = {"exchange": "work", "exchange_type": "topic"}
    queues = {
        "all": {**topic, "binding_key": "#", "queue_arguments": {"x-max-priority": 10}},
        "mail": {**topic, "binding_key": "mail.*", "queue_arguments": {"x-max-priority": 10}},
    }
    site = make_site(task_queues=queues)
    declare(site.app, queues)
    for priority in (1, 9, 5):
        site.send("record", f"mail {priority}", exchange="work", routing_key="mail.out", priority=priority)
    site.send("record", "report", exchange="work", routing_key="report.daily", priority=10)
    assert (site.counts("all").ready, site.counts("mail").ready) == (4, 3)

    site.worker("-Q", "all")
    eventually(lambda: len(site.marks()) == 4)
    assert site.marks() == ["report", "mail 9", "mail 5", "mail 1"]


def declare(app: Celery, queues: dict[str, dict[str, Any]]) -> None:
    with app.connection_for_write() as connection:
        for name, given in queues.items():
            exchange = Exchange(given["exchange"], type=given["exchange_type"])
            queue = Queue(name, exchange, routing_key=given["binding_key"], queue_arguments=given["queue_arguments"])
            queue(connection.default_channel).declare()


def test_a_quorum_queue_needs_no_delayed_exchanges(make_site: MakeSite):
    """task_default_queue_type may stay as it was for RabbitMQ: tasks run, those with an ETA when they are due."""
    site = make_site(task_default_queue_type="quorum")
    site.worker()
    site.send("record", "now")
    site.send("record", "later", countdown=2)

    eventually(lambda: site.marks() == ["now", "later"])
    assert not [queue for queue in site.queues() if queue.startswith("celery_delayed")]


def test_a_queue_with_the_oddest_name_is_served(make_site: MakeSite):
    """Two hundred and more bytes that mean something to SQL, to drivers and to format strings."""
    odd = "100% 'quoted' %s %(x)s \\ " + "ü☃" * 40
    site = make_site(task_default_queue=odd)
    site.worker()
    site.send("record", "served", countdown=0.5)

    eventually(lambda: site.marks() == ["served"])
    eventually(lambda: site.waiting(odd) == 0)


def test_a_deleted_queue_comes_back_with_the_next_task(site: Site):
    """A worker that waits for it need not be restarted."""
    site.worker()
    with site.app.connection_for_write() as connection:
        Queue("celery")(connection.default_channel).delete()
    site.send("record", "after")

    eventually(lambda: site.marks() == ["after"])
