"""Many tasks, large ones, and what they leave in the database: nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import func, select

from kombu_sqlqueue.process import process_for

from .workers import Site, eventually

PRODUCERS = 4
TASKS = 100
#: A process that sends tasks numbered from `first`, every other one for later.
PRODUCER = """
import sys
from tests.celery.tasks import record
first, count = map(int, sys.argv[1:])
for number in range(first, first + count):
    record.apply_async((str(number),), countdown=number % 2)
"""
#: What databases say when writers got into each other's way, and it was not dealt with.
LOCKED = re.compile(r"database is locked|[Dd]eadlock|[Ll]ock wait|\((1213|1205), |could not serialize")


def rows(site: Site, *names: str) -> list[int]:
    """How many rows the tables have."""
    database = process_for(site.database).database
    counts = [select(func.count()).select_from(getattr(database.tables, name)) for name in names]
    return [database.statement(lambda tx, count=count: int(tx.execute(count).scalar_one())) for count in counts]


def test_many_producers_and_workers_do_not_get_into_each_others_way(site: Site):
    """Processes that write all at once: each task runs once, no error about locks reaches anybody, no row is left."""
    workers = [site.worker("-c4"), site.worker("-c2")]
    command = [sys.executable, "-c", PRODUCER]
    producers = [
        subprocess.Popen(
            [*command, str(nth * TASKS), str(TASKS)], env=site.environment, stderr=subprocess.PIPE, cwd=site.directory
        )
        for nth in range(PRODUCERS)
    ]
    said = [producer.communicate(timeout=120)[1].decode() for producer in producers]

    assert [producer.returncode for producer in producers] == [0] * PRODUCERS, said
    eventually(lambda: len(site.marks()) >= PRODUCERS * TASKS and site.waiting() == 0, 120)
    assert Counter(site.marks()) == {str(number): 1 for number in range(PRODUCERS * TASKS)}
    for text in [*said, *(worker.text for worker in workers)]:
        assert not LOCKED.search(text), text
    assert rows(site, "message", "dead") == [0, 0]


LARGE = "x" * 3_000_000


@pytest.mark.parametrize(
    "value", [LARGE, {"nul": "a\0b", "emoji": "🦆" * 1000, "nested": [{"deep": [None, 1.5, True]}] * 100}]
)
def test_arguments_and_results_of_any_content_come_back_whole(site: Site, value: Any):
    """Megabytes, NUL, characters beyond the basic plane: no column cuts or refuses them."""
    site.worker()

    assert site.send("echo", value).get(timeout=60) == value
    failed = site.send("fail", f"failed with {value}")
    with pytest.raises(ValueError, match="failed with"):
        failed.get(timeout=60)
    assert failed.result.args == (f"failed with {value}",)


def test_a_group_of_more_than_a_thousand_is_restored_whole(site: Site):
    """The ids of its members are more than many a column holds."""
    size = 1300  # more than the 65,535 bytes of MariaDB's TEXT
    from celery import group
    from celery.result import GroupResult

    site.worker("-c2")
    sent = group(site.task("add", number, 1) for number in range(size)).apply_async()
    sent.save()

    restored = GroupResult.restore(sent.id, app=site.app)
    assert restored.join(timeout=120) == [number + 1 for number in range(size)]
