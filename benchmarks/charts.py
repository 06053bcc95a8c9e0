"""What was found, as charts: one file a measure, one panel a metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .measures import MEASURES, Measure
from .peers import ANCHOR, PEERS
from .report import number
from .runs import Findings, Found

__all__ = ["draw"]

OURS, ANCHORED, OTHERS = "#1f6f8b", "#c0392b", "#b0b7bd"


def draw(findings: Findings, directory: Path) -> list[Path]:
    """The files written. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for name, measure in MEASURES.items():
        if name in findings.measures and (figure := _figure(pyplot, measure, findings.measures[name])):
            written.append(directory / f"{name}.png")
            figure.savefig(written[-1], dpi=120)
            pyplot.close(figure)
    return written


def _figure(pyplot: Any, measure: Measure, found: Found) -> Any:
    medians = found.medians()
    metrics = [m for m in measure.metrics if m.charted and any(m.name in values for values in medians.values())]
    names = [name for name in PEERS if name in medians]
    if not metrics:
        return None
    size = (4.2 * len(metrics) + 2.2, 0.34 * len(names) + 1.3)
    figure, row = pyplot.subplots(1, len(metrics), figsize=size, sharey=True, squeeze=False, layout="constrained")
    figure.suptitle(measure.title)
    for axes, metric in zip(row[0], metrics, strict=True):
        values = [medians[name].get(metric.name) for name in names]
        bars = axes.barh(
            [_label(name) for name in names], [value or 0 for value in values], color=[_colour(n) for n in names]
        )
        axes.bar_label(bars, ["" if value is None else number(value) for value in values], padding=3, fontsize=8)
        axes.set_title(f"{metric.title}, {metric.unit} ({'more' if metric.more else 'less'} is better)", fontsize=9)
        axes.margins(x=0.18)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    row[0][0].invert_yaxis()
    return figure


def _label(name: str) -> str:
    return PEERS[name].title.replace("*", "")


def _colour(name: str) -> str:
    if PEERS[name].ours:
        return OURS
    return ANCHORED if name == ANCHOR else OTHERS
