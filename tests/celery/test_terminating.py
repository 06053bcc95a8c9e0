"""Tasks that are ended while they run, on each pool that can do that."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from .workers import Site, eventually

#: Each with workers for minutes: what differs on MariaDB is tested elsewhere.
DATABASES = ("sqlite", "postgresql")


@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
@pytest.mark.parametrize("late", [True, False])
def test_a_terminated_task_is_revoked_and_its_message_settled(site: Site, pool: str, late: bool):
    """It does not come back, its state is REVOKED, and its slot serves the next task."""
    if pool != "prefork":
        pytest.importorskip(pool)
    site.worker("-P", pool)
    result = site.send("sleep_late" if late else "sleep_early", "long", 60)
    eventually(lambda: site.marks("begin long"))
    eventually(lambda: any(task["time_start"] for task in (site.app.control.inspect().active() or {}).get("w1@test", [])))
    result.revoke(terminate=True)
    site.send("record", "next")

    with pytest.raises(TaskRevokedError):
        result.get(timeout=60)
    eventually(lambda: site.marks("next"))
    eventually(lambda: site.waiting() == 0)
    assert site.counts().dead == 0


@pytest.mark.parametrize("late", [True, False])
def test_a_time_limit_ends_a_green_task(site: Site, late: bool):
    """As in a child process: FAILURE, the message settled, the next task runs. Celery's eventlet pool has no time limits."""
    pytest.importorskip("gevent")
    site.worker("-P", "gevent")
    result = site.send("sleep_late" if late else "sleep_early", "slow", 60, time_limit=1)
    site.send("record", "next")

    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=60)
    eventually(lambda: site.marks("next"))
    eventually(lambda: site.waiting() == 0)
