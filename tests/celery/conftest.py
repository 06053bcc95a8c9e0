"""A deployment of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..databases import wipe
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


@pytest.fixture
def site_accepting_all(make_site: Callable[..., Site]) -> Site:
    """A deployment with a worker that accepts every serializer."""
    site = make_site(accept_content=["json", "pickle", "msgpack", "yaml"])
    site.worker()
    return site
