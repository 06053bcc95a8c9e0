"""The SQL that the pages show runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import text

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability

from ..databases import requires

DOCS = Path(__file__).parents[2] / "docs"
QUERIES = [
    pytest.param(query, id=f"{page}-{number}")
    for page in ("monitoring", "operating", "outbox", "scaling")
    for number, query in enumerate(re.findall(r"```sql\n(SELECT.+?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL))
]


@requires(Capability.LISTEN_NOTIFY)
@pytest.mark.parametrize("query", QUERIES)
def test_each_query_of_the_pages_runs(database: Database, query: str):
    """They are written for PostgreSQL and the default names."""
    path = text(f"SET LOCAL search_path TO {database.options.schema}")

    database.run(lambda tx: (tx.execute(path), tx.execute(text(query)).all()))
