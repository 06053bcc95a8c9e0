"""Whatever ends a task, and whatever its settings say of that: it runs as often as they say, and is settled."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import celery
import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

from .endings import COMBINATIONS, Settings
from .workers import Site, eventually

#: Each with workers for minutes: what differs on MariaDB is tested elsewhere.
DATABASES = ("sqlite", "postgresql")

if celery.VERSION < (5, 7):
    pytest.skip("Celery 5.7 brought settings of their own for each ending", allow_module_level=True)

#: A message may be put back once: then it is dead.
ONCE = {"max_reclaims": 1}


def outcome(settings: Settings, how: str) -> tuple[int, bool]:
    """How often the task runs, and whether it is kept as dead, as Celery documents its settings."""
    if how == "kill" and settings.retry:
        return 2, settings.late and not settings.acks_on_failure
    if not settings.late:
        return 1, False
    if how == "kill" and settings.reject:
        return 2, True
    if how == "timeout":
        return (1, False) if settings.acks_on_timeout else (2, True)
    return 1, not settings.acks_on_failure


#: Each ending with what the task's result tells, and the settings that make a difference for it.
ENDINGS = {
    "kill": (WorkerLostError, {"late", "acks_on_failure", "reject", "retry"}),
    "timeout": (TimeLimitExceeded, {"late", "acks_on_timeout", "reject", "retry"}),
    "soft timeout": (SoftTimeLimitExceeded, {"late", "acks_on_failure", "acks_on_timeout"}),
    "memory": (MemoryError, {"late", "acks_on_failure"}),
    "fail": (ValueError, {"late", "acks_on_failure"}),
}
LIMITS = {"timeout": {"time_limit": 1}, "soft timeout": {"soft_time_limit": 1}}


@pytest.mark.parametrize("how", list(ENDINGS))
def test_every_combination_of_settings_ends_as_it_says(make_site, how: str):
    """Each task fails with what happened to it, after as many runs as its settings allow, and nothing is left behind."""
    error, matters = ENDINGS[how]
    site: Site = make_site(options=ONCE)
    plain = dict.fromkeys(set(Settings.__annotations__) - matters, True)
    chosen = sorted({replace(settings, **plain) for settings in COMBINATIONS}, key=lambda settings: settings.name)
    site.worker("-c2", app="tests.celery.ending_tasks")
    results = {s: site.app.send_task(s.name, (how,), **LIMITS.get(how, {})) for s in chosen}

    for settings, result in results.items():
        with pytest.raises(error):
            result.get(timeout=120)
        assert result.state == "FAILURE", settings
    eventually(lambda: site.waiting() == 0)
    expected = {settings.name: outcome(settings, how) for settings in chosen}
    assert Counter(site.marks()) == {f"{how}: {name}": runs for name, (runs, _) in expected.items()}
    assert Counter(message.task for message in site.dead()) == Counter(name for name, (_, dead) in expected.items() if dead)
