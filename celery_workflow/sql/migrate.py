"""The line of migrations of this package's tables."""

from __future__ import annotations

from pathlib import Path

from kombu_sqlqueue.sql.migrate import Line

__all__ = ["HEAD", "line"]

#: The schema this release is made for: the number of the last migration.
HEAD = "0002"


def line(prefix: str) -> Line:
    """The migrations of the tables that begin with `prefix`."""
    return Line(HEAD, Path(__file__).with_name("migrations"), "workflow", prefix)
