"""`celery workflow` in processes of its own, beside a real worker."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_sqlqueue.options import DatabaseOptions

from ..celery.workers import Site, eventually
from .apps import prepare, wipe_all

DATABASES = ["sqlite", "postgresql"]
Typed = Callable[..., Any]


@pytest.fixture
def site(database_options: DatabaseOptions, tmp_path: Path) -> Iterator[Site]:
    site = Site(database_options, tmp_path)
    prepare(site.app)
    site.worker(app="tests.workflow.watched")
    yield site
    site.close()
    wipe_all(site.app)


@pytest.fixture
def typed(site: Site) -> Typed:
    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "celery", "-A", "tests.workflow.watched", "workflow", *arguments]
        return subprocess.Popen(
            command, cwd=site.directory, env=site.environment, **{"stdout": subprocess.PIPE, "text": True, **options}
        )

    return start


def read(process: subprocess.Popen[str]) -> str:
    """What a command printed, once it has ended well."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


def test_a_run_is_started_watched_and_signalled_by_commands(typed: Typed):
    run_id = read(typed("start", "watched.doubled", "--input", "n=4")).strip()
    watching = typed("watch", run_id)
    lines = iter(watching.stdout)
    for line in lines:
        if "go awaiting" in line:
            break

    assert "is with run" in read(typed("signal", run_id, "go", "3"))
    rest = list(lines)

    assert watching.wait(60) == 0
    assert any("go succeeded (signal)" in line for line in rest)
    assert "run succeeded" in rest[-1]
    assert "succeeded" in read(typed("show", run_id))


def test_on_a_terminal_the_picture_is_redrawn_until_the_run_ends(typed: Typed, tmp_path: Path):
    run_id = read(typed("start", "watched.doubled", "--input", "n=4")).strip()
    terminal, inner = pty.openpty()
    watching = typed("watch", run_id, stdout=inner)
    os.close(inner)
    seen = b""

    def waits() -> bool:
        nonlocal seen
        seen += os.read(terminal, 10_000)
        return b"awaiting" in seen

    eventually(waits)
    read(typed("signal", run_id, "go", "3"))
    while True:
        try:
            seen += os.read(terminal, 10_000)
        except OSError:  # Nobody has its other end any more.
            break

    assert watching.wait(60) == 0
    last = seen.decode().rpartition("watched.doubled")[2]
    assert "[##############################] 4 of 4 done" in last
    assert "2/2" in last


def test_who_watches_a_run_that_is_cancelled_is_told_by_the_exit_code(typed: Typed):
    run_id = read(typed("start", "watched.doubled", "--input", "n=4")).strip()
    watching = typed("watch", run_id)
    read(typed("cancel", run_id, "--reason", "enough"))

    output, _ = watching.communicate(timeout=60)

    assert watching.returncode == 1
    assert "run cancelled" in output
