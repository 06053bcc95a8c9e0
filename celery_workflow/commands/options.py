"""Options that several commands have."""

from __future__ import annotations

import click

__all__ = ["AS_JSON"]

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
