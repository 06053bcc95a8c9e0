"""The benchmarks still measure. What they find is nothing that a test could hold them to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.figures import medians
from benchmarks.measures import MEASURES
from benchmarks.measures.kinds import REGISTERED
from benchmarks.peers import PEERS
from benchmarks.report import markdown
from benchmarks.runs import Findings, Found

ROOT = Path(__file__).parents[1]


def test_one_command_measures_for_real(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks", "consume", "--peers", "sqlite", "-n", "50", "--repeat", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"C_FORCE_ROOT": "1"},
        check=False,
        text=True,
        capture_output=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())["measures"]["consume"]
    assert found["medians"].keys() == {"sqlite"}, done.stderr
    assert found["medians"]["sqlite"].keys() == {"rate", "main_us", "children_us", "main_mb"}
    assert all(value >= 0 for value in found["medians"]["sqlite"].values())
    assert found["medians"]["sqlite"]["rate"] > 1
    assert "kombu-sqlqueue on SQLite" in (tmp_path / "table.md").read_text()


def test_a_median_is_of_the_visits_that_have_the_figure():
    assert medians([{"a": 1.0}, {"a": 9.0, "b": 5.0}, {"a": 2.0}]) == {"a": 2.0, "b": 5.0}


def test_the_table_shows_ratios_and_names_who_was_not_measured():
    visits = [
        {"peer": "sqlite", "load": 0.5, "values": {"rate": 900.0}},
        {"peer": "redis", "load": 0.7, "values": {"rate": 300.0}},
        {"peer": "rabbitmq", "load": 0.7, "error": "it broke"},
    ]
    found = Found("2026-01-01 00:00", 100, 1, visits, {"dbos": "dbos is not installed"})
    findings = Findings({"cores": 2, "architecture": "x", "system": "y", "python": "3", "packages": {}}, {"consume": found})

    table = markdown(findings)

    assert "| **kombu-sqlqueue on SQLite** | 900 (3.00) |" in table
    assert table.index("Celery on Redis | 300") < table.index("kombu-sqlqueue on SQLite"), "in the order of the peers"
    assert "rabbitmq: it broke" in table
    assert "dbos: dbos is not installed" in table


def test_the_page_tells_of_each_measure_and_peer():
    page = (ROOT / "docs" / "performance.md").read_text()
    for name in (*MEASURES, *PEERS):
        assert f"`{name}`" in page, name


def test_each_measure_has_its_place():
    assert set(MEASURES) == set(REGISTERED)


def test_each_measure_names_its_metrics_once():
    for measure in MEASURES.values():
        names = [metric.name for metric in measure.metrics]
        assert len(set(names)) == len(names), measure.name
        assert any(metric.charted for metric in measure.metrics), measure.name


def test_schedules_are_measured_for_real(tmp_path: Path):
    few = ["--schedules", "50", "--burst", "5", "--burst-in", "5", "--idle-for", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.schedules", f"sqlqueue+sqlite:///{tmp_path / 'queue.db'}", *few],
        cwd=ROOT,
        env=os.environ | {"C_FORCE_ROOT": "1"},
        check=False,
        text=True,
        capture_output=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for found in ("created 50 schedules in", "first fire", "5 due at one moment: late by", "idle:"):
        assert found in done.stdout
