"""Redis and RabbitMQ: a tick's task leaves through the outbox, with an id that follows from the tick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_workflow import Schedules
from celery_workflow.home import Home
from celery_workflow.schedules.firing import Firing
from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..celery.outboxes import OutboxSite, broker_url
from ..celery.workers import eventually
from .apps import prepare, wipe_all

DATABASES = ["sqlite", "postgresql"]


@pytest.fixture
def make_site(database_options: DatabaseOptions, tmp_path: Path) -> Iterator[Callable[[str], OutboxSite]]:
    sites: list[OutboxSite] = []

    def make(broker: str) -> OutboxSite:
        sites.append(OutboxSite(database_options, tmp_path, broker_url(broker)))
        prepare(sites[-1].app)
        return sites[-1]

    yield make
    for site in sites:
        wipe_all(site.app)
        process_for(site.outbox_options.database).close()
        site.close()


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_each_tick_arrives_once_through_the_outbox(make_site: Callable[[str], OutboxSite], broker: str):
    site = make_site(broker)
    schedules, firing = Schedules(site.app), Firing(site.app, Home(site.app))
    schedules.create("each", "tests.celery.tasks.record", 0.05, args=["tick"], misfire="fire_all")
    eventually(lambda: firing.run_once() is not None and schedules.get("each").runs >= 5)
    schedules.trigger("each")
    schedules.pause("each")
    fired = {tick.task_id for tick in schedules.history("each", 1000)}
    assert len(fired) == schedules.get("each").runs + 1
    assert list(site.drain()) == []
    site.relay_all()

    arrived = [message.headers for message in site.drain()]
    assert sorted(headers["id"] for headers in arrived) == sorted(str(task_id) for task_id in fired)
    assert {headers["periodic_task_name"] for headers in arrived} == {"each"}
    firing.close()


def test_what_is_decided_from_messages_is_refused_where_they_are_elsewhere(make_site: Callable[[str], OutboxSite]):
    site = make_site("redis")
    schedules, firing = Schedules(site.app), Firing(site.app, Home(site.app))
    schedules.create("each", "tests.celery.tasks.record", 0.05, overlap="skip")
    schedules.create("other", "tests.celery.tasks.record", 0.05)
    eventually(lambda: firing.run_once() is not None and schedules.get("other").runs)

    assert "a sqlqueue broker" in schedules.get("each").error
    firing.close()


def test_a_broker_elsewhere_without_an_outbox_is_refused(database_options: DatabaseOptions):
    """A tick and its message would not be one transaction."""
    app = Celery("foreign", broker="redis://127.0.0.1:6379/9", set_as_current=False)
    with pytest.raises(ConfigurationError, match="sqlqueue_outbox"):
        Home(app)
    app.conf.workflow_store_url = f"sqlqueue+{database_options.url}"
    with pytest.raises(ConfigurationError, match="sqlqueue_outbox"):
        Firing(app, Home(app))
