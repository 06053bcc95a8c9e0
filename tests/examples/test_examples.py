"""Each example is a page of documentation that runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SAYS = {
    "order_saga": [
        "result: tea is on its way, approved by ann",
        "order-2 has failed: rejected by bob",
        "undone: gold is refunded, then gold is back on its shelf",
        "order-3 has failed: no signal 'decision' came in time",
        "undone: ink is refunded, then ink is back on its shelf",
        "approve: failed",
    ],
    "nightly_etl": [
        "Is it the same run? yes",
        "result: 57420 rows in 4 tables",
        "load-4           succeeded  attempt 2",
        "tried again: load-4: the warehouse is busy",
    ],
    "document_pipeline": [
        "3 pages were paid for",
        "result: 6 pages, the last is 'REPORT, PAGE 6'",
        "page 1: read 2 times, paid for 1 times",
        "page 6: read 1 times, paid for 1 times",
    ],
}


@pytest.mark.parametrize("name", SAYS)
def test_an_example_shows_what_it_promises(name: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env=os.environ | {"C_FORCE_ROOT": "1"},
        check=False,
        text=True,
        capture_output=True,
        timeout=200,
    )

    logs = "\n".join(log.read_text() for log in tmp_path.rglob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    for said in SAYS[name]:
        assert said in done.stdout


def test_each_example_is_listed_and_tested():
    folders = {path.parent.name for path in EXAMPLES.glob("*/__main__.py")}

    assert folders == {*SAYS, "demo"}
    for name in folders:
        assert f"`python examples/{name}`" in (EXAMPLES / "README.md").read_text()
