"""The demo is what a newcomer sees first."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo"


def test_the_demo_shows_everything_and_leaves_its_file_behind(tmp_path: Path):
    environment = os.environ | {"C_FORCE_ROOT": "1"}
    command = [sys.executable, str(DEMO)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, text=True, capture_output=True, timeout=100)

    log = tmp_path / "demo" / "worker.log"
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text()
    for shown in (
        "[2, 4, 6]",
        "[1, 2, 3, 4, 5]",
        "20",
        "done at try 2",
        "after it was due",
        "order 2 is on its way",
        "order 7 is on its way",
    ):
        assert shown in done.stdout
    with sqlite3.connect(tmp_path / "demo" / "demo.db") as connection:
        assert connection.execute("SELECT count(*) FROM sqlqueue_message").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM sqlqueue_dead").fetchone() == (0,)
        ticks = [row[0] for row in connection.execute("SELECT tick_at / 1000000 FROM workflow_tick ORDER BY tick_at")]
        assert len(ticks) >= 5
        assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))
    connection.close()
