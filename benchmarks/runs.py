"""Runs measures, peer by peer and again, and keeps what was found."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .figures import Values, medians
from .measures import Measure
from .peers import select

__all__ = ["Findings", "Found", "run"]

PACKAGES = ("kombu-sqlqueue", "celery", "kombu", "sqlalchemy", "psycopg", "redis", "procrastinate", "pgqueuer", "dbos")

Say = Callable[[str], None]


@dataclass
class Found:
    """What one measure found."""

    when: str
    n: int
    repeat: int
    #: Each visit: {"peer": ..., "load": ..., "values": {...}}, or "error" instead of the values.
    visits: list[dict[str, Any]] = field(default_factory=list)
    #: Peers that are not there, with the reason.
    missing: dict[str, str] = field(default_factory=dict)

    def medians(self) -> dict[str, Values]:
        """Of each peer that was measured at all."""
        runs: dict[str, list[Values]] = {}
        for visit in self.visits:
            if "values" in visit:
                runs.setdefault(visit["peer"], []).append(visit["values"])
        return {peer: medians(values) for peer, values in runs.items()}

    def errors(self) -> dict[str, str]:
        return {visit["peer"]: visit["error"] for visit in self.visits if "error" in visit}


@dataclass
class Findings:
    """What all measures found; a measure that runs again replaces what it found before."""

    machine: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, Found] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Findings:
        if not path.exists():
            return cls()
        stored = json.loads(path.read_text())
        measures = {
            name: {key: value for key, value in found.items() if key != "medians"}
            for name, found in stored["measures"].items()
        }
        return cls(stored["machine"], {name: Found(**found) for name, found in measures.items()})

    def save(self, path: Path) -> None:
        measures = {name: vars(found) | {"medians": found.medians()} for name, found in self.measures.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": self.machine, "measures": measures}, indent=1) + "\n")


def run(
    measures: Sequence[Measure],
    *,
    peers: Sequence[str],
    repeat: int,
    n: int | None,
    quick: bool,
    path: Path,
    say: Say,
) -> Findings:
    """Each repeat visits each peer once, so that what else the machine does falls on all alike.

    What was found is saved after each visit: a run that is broken off leaves what it has.
    """
    findings = Findings.load(path)
    findings.machine = machine()
    for measure in measures:
        plan = measure.plan(n, quick=quick)
        there, missing = select([name for name in measure.peers if name in peers])
        found = Found(time.strftime("%Y-%m-%d %H:%M"), plan.n, repeat, missing=missing)
        findings.measures[measure.name] = found
        for name, reason in missing.items():
            say(f"{measure.name}: {name} is skipped: {reason}")
        for number in range(repeat):
            for peer in there:
                began = time.monotonic()
                visit: dict[str, Any] = {"peer": peer.name, "repeat": number, "load": round(os.getloadavg()[0], 1)}
                try:
                    visit["values"] = measure.run(peer, plan)
                    told = ", ".join(f"{name} {value:,.4g}" for name, value in visit["values"].items())
                except Exception as error:  # noqa: BLE001  One peer's failure is a finding, not the end of the others.
                    visit["error"] = told = f"{type(error).__name__}: {error}"
                say(f"{measure.name} {number + 1}/{repeat} {peer.name} ({time.monotonic() - began:.0f} s): {told}")
                found.visits.append(visit)
                findings.save(path)
    return findings


def machine() -> dict[str, Any]:
    """What the figures depend on, as far as a program can tell."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": versions,
    }
