"""What was found, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from .figures import Values
from .measures import MEASURES, Measure, Metric
from .peers import ANCHOR, PEERS
from .runs import Findings, Found

__all__ = ["markdown"]

NOTHING = "-"


def markdown(findings: Findings) -> str:
    parts = [_machine(findings)]
    parts += [_section(measure, findings.measures[name]) for name, measure in MEASURES.items() if name in findings.measures]
    return "\n\n".join(parts) + "\n"


def _machine(findings: Findings) -> str:
    machine = findings.machine
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"{machine['cores']} cores ({machine['architecture']}, {machine['system']}), Python {machine['python']}; {packages}.\n"
        f"Medians; in brackets the ratio to {PEERS[ANCHOR].title} in the same run."
    )


def _section(measure: Measure, found: Found) -> str:
    medians = found.medians()
    metrics = [metric for metric in measure.metrics if any(metric.name in values for values in medians.values())]
    return "\n\n".join([f"### {measure.title}", "\n".join(_table(metrics, medians)), *_notes(found)])


def _table(metrics: list[Metric], medians: dict[str, Values]) -> Iterator[str]:
    yield "| | " + " | ".join(f"{metric.title}, {metric.unit}" for metric in metrics) + " |"
    yield "|---" + "|---:" * len(metrics) + "|"
    anchor = medians.get(ANCHOR, {})
    for name, values in sorted(medians.items(), key=lambda item: list(PEERS).index(item[0])):
        cells = (_cell(values.get(metric.name), anchor.get(metric.name)) for metric in metrics)
        yield f"| {PEERS[name].title} | " + " | ".join(cells) + " |"


def _cell(value: float | None, anchor: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{number(value)} ({value / anchor:.2f})" if anchor else number(value)


def number(value: float) -> str:
    """Three digits that count; more would be noise."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _notes(found: Found) -> Iterator[str]:
    load = max((visit["load"] for visit in found.visits), default=0.0)
    yield f"{found.when}, n = {found.n:,}, {found.repeat} visits each, load at most {load}."
    for peer, reason in (found.missing | found.errors()).items():
        yield f"Not measured: {peer}: {reason}."
