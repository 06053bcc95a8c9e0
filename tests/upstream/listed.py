"""What docs/compatibility.md says of the upstream suites: how many tests pass, and why each other one does not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PAGE", "Listed", "listed"]

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"

#: A heading over the tests that do not pass, such as "### Kombu on SQLite".
_HEADING = re.compile(r"^### (Kombu|Celery) on (\w+)$")
#: A row of the table of counts: suite, database, passed, of how many.
_COUNT = re.compile(r"^\| (Kombu|Celery) [\d.]+ \| (\w+) \| (\d+) \| (\d+) \|$")
#: A row of a table of tests, each with its reason.
_TEST = re.compile(r"^\| `([^`]+)` \| (.+) \|$")


@dataclass
class Listed:
    """What the page says of one suite on one database."""

    passed: int = 0
    total: int = 0
    #: Why each test does not pass, by the test.
    reasons: dict[str, str] = field(default_factory=dict)


def listed() -> dict[tuple[str, str], Listed]:
    """By the names of suite and database, in small letters."""
    found: dict[tuple[str, str], Listed] = {}
    here: Listed | None = None
    for line in PAGE.read_text().splitlines():
        if row := _COUNT.match(line):
            suite, database, passed, total = row.groups()
            found[suite.lower(), database.lower()] = Listed(int(passed), int(total))
        elif heading := _HEADING.match(line):
            here = found[heading[1].lower(), heading[2].lower()]
        elif line.startswith("#"):
            here = None
        elif here is not None and (row := _TEST.match(line)):
            here.reasons[row[1]] = row[2]
    return found
