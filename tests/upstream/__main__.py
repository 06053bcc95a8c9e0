"""Run Kombu's and Celery's own suites on our databases, and compare with docs/compatibility.md: `make peer-suites`.

The tests are upstream's, and so are not here; nor is the harness that fetches and runs them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .listed import PAGE, listed
from .suites import SUITES, Suite, Unavailable


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.upstream", description=__doc__.splitlines()[0])
    parser.add_argument("harness", type=Path, help="the folder of the harness")
    parser.add_argument("--results", type=Path, default=Path("peer-results"), help="where its logs go")
    parser.add_argument("--only", action="append", choices=[suite.label for suite in SUITES], help="repeatable")
    given = parser.parse_args()
    chosen = [suite for suite in SUITES if not given.only or suite.label in given.only]
    told = [run(suite, given.harness.resolve(), given.results.resolve()) for suite in chosen]
    print(*(line for line, _ in told), sep="\n")
    return 0 if all(good for _, good in told) else 1


def run(suite: Suite, harness: Path, results: Path) -> tuple[str, bool]:
    """Run it; a line that says how it went, and whether that is what the page says."""
    try:
        outcome = suite.run(harness, results)
    except Unavailable as reason:
        return f"{suite.title}: not run, {reason}", False
    if not outcome.tests:
        return f"{suite.title}: nothing ran, see {results}", False
    expected = listed()[suite.of, suite.database].reasons
    differences = [
        *(f"{end}, and not in {PAGE.name}: {name}" for name, end in outcome.others.items() if name not in expected),
        *(f"passed, in spite of {PAGE.name}: {name}" for name in expected if outcome.tests.get(name) == "passed"),
    ]
    line = f"{suite.title}: {outcome.passed} of {len(outcome.tests)} passed"
    if outcome.others and not differences:
        line += f"; {PAGE.name} has the reason of each other one"
    return "\n  ".join([line, *differences]), not differences


sys.exit(main())
