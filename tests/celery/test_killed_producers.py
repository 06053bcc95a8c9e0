"""kill -9 of producers at random moments: what they knew to have returned is stored, once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import func, select

from kombu_sqlqueue.process import process_for

from .workers import ROOT, Site


@pytest.mark.parametrize("kills", [24, pytest.param(240, marks=pytest.mark.soak)])
def test_what_returned_before_a_kill_is_stored_once_and_what_had_not_at_most_once(site: Site, tmp_path: Path, kills: int):
    """Dozens of producers, each killed in the midst of publishing; their own logs, flushed to the disk, say how far they came."""
    journal = tmp_path / "journal"
    producers = [sys.executable, "-m", "tests.celery.killed_producer", str(kills), str(journal)]
    subprocess.run(producers, env=site.environment, cwd=ROOT, check=True, timeout=120)
    lines = [line.split() for line in journal.read_text().splitlines()]
    returned, tried = ({id for what, id in lines if what == wanted} for wanted in ("returned", "tried"))
    stored = copies(site)

    assert len(returned) > kills
    assert tried - returned, "no producer was killed between the two"
    assert {stored[id] for id in returned} == {1}
    assert {stored[id] for id in tried - returned} <= {0, 1}
    assert stored.keys() <= tried


def copies(site: Site) -> Counter[str]:
    """How many messages each task has."""
    database = process_for(site.database).database
    m = database.tables.message.c
    return Counter(dict(database.run(lambda tx: tx.execute(select(m.task_id, func.count()).group_by(m.task_id)).all())))
