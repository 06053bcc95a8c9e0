"""A deployment of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..databases import wipe
from .outboxes import OutboxSite, broker_url
from .workers import Site


@pytest.fixture
def make_site(database_options: DatabaseOptions, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes deployments on each database in turn; at the end their workers are killed and the tables wiped."""
    sites: list[Site] = []

    def make(**settings: Any) -> Site:
        sites.append(Site(database_options, tmp_path, **settings))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
    process_for(database_options).close()
    wipe(process_for(database_options).database)


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    """A deployment with leases of 3 seconds."""
    return make_site()


@pytest.fixture(scope="module")
def shared_site(
    databases: dict[str, DatabaseOptions], database_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A deployment that all tests of a module share, and that each leaves as it found it."""
    options = databases[database_name]
    site = Site(options, tmp_path_factory.mktemp("site"))
    yield site
    site.close()
    process_for(options).close()
    wipe(process_for(options).database)


@pytest.fixture
def site_accepting_all(make_site: Callable[..., Site]) -> Site:
    """A deployment with a worker that accepts every serializer."""
    site = make_site(accept_content=["json", "pickle", "msgpack", "yaml"])
    site.worker()
    return site


@pytest.fixture
def make_outbox_site(database_options: DatabaseOptions, tmp_path: Path) -> Iterator[Callable[..., OutboxSite]]:
    sites: list[OutboxSite] = []

    def make(broker: str, **settings: Any) -> OutboxSite:
        sites.append(OutboxSite(database_options, tmp_path, broker_url(broker), **settings))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
    wipe(process_for(database_options).database)
    process_for(database_options).close()
