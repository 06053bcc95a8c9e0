"""`python -m benchmarks consume publish --peers redis,postgresql --repeat 3`, or `python -m benchmarks all`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from .charts import draw
from .measures import MEASURES
from .peers import PEERS
from .report import markdown
from .runs import Findings, run

EVERYTHING = "all"
OUT = Path(__file__).parent / "out"
RESULTS = "results.json"


def peers_named(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    names = list(PEERS) if value is None else value.split(",")
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: there are {', '.join(PEERS)}")
    return names


@click.command(epilog=f"Measures: {', '.join(MEASURES)}. Peers: {', '.join(PEERS)}.")
@click.argument("measures", nargs=-1, type=click.Choice([EVERYTHING, "report", *MEASURES]), required=True)
@click.option("--peers", callback=peers_named, help="Which peers, with commas between; all unless given.")
@click.option("--repeat", default=3, show_default=True, help="How often each peer is visited.")
@click.option("-n", type=int, help="How many messages, instead of what each measure is made for.")
@click.option("--quick", is_flag=True, help="A few messages only: tries the harness, its figures mean nothing.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=OUT, help="Where the files go.")
def main(measures: tuple[str, ...], peers: list[str], repeat: int, n: int | None, quick: bool, out: Path) -> None:
    """Measure, and write results.json, table.md and the charts. `report` writes the latter two again."""
    # Being stopped is no reason to leave workers and databases behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    path = out / RESULTS
    if "report" in measures:
        findings = Findings.load(path)
        if not findings.measures:
            raise click.ClickException("nothing has been measured yet")
    else:
        chosen = [measure for name, measure in MEASURES.items() if EVERYTHING in measures or name in measures]
        findings = run(chosen, peers=peers, repeat=repeat, n=n, quick=quick, path=path, say=_say)
    (out / "table.md").write_text(markdown(findings))
    try:
        draw(findings, out)
    except ImportError:
        _say("no charts: matplotlib is not installed")
    click.echo((out / "table.md").read_text())


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
