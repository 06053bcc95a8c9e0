"""A deployment whose worker and whose sender have the rights that docs/security.md gives them, and no others."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError
from sqlalchemy.engine import make_url

from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..databases import execute
from .workers import Site, eventually

DATABASES = ("postgresql",)
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture
def limited(database_options: DatabaseOptions) -> Iterator[Callable[[str], DatabaseOptions]]:
    """The database as one sees it who has the documented rights of a role."""
    made: list[tuple[str, DatabaseOptions]] = []
    owner = process_for(database_options).database
    schema = database_options.schema

    def act(role: str) -> DatabaseOptions:
        name = f"{role}_{uuid.uuid4().hex[:8]}"
        execute(owner, f"CREATE ROLE {name}")
        execute(owner, f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        for grant in re.findall(rf"^GRANT [^;]*\bsqlqueue_[^;]* TO {role};", PAGE.read_text(), re.MULTILINE):
            of_schema = re.sub(r"\bsqlqueue_(?!app|producer)", f"{schema}.sqlqueue_", grant)
            execute(owner, of_schema.replace(f" TO {role};", f" TO {name}"))
        url = make_url(database_options.url).update_query_dict({"options": f"-c role={name}"})
        made.append((name, dataclasses.replace(database_options, url=url.render_as_string(hide_password=False))))
        return made[-1][1]

    yield act
    for name, options in made:
        process_for(options).close()
        execute(owner, f"DROP OWNED BY {name}")
        execute(owner, f"DROP ROLE {name}")


def test_a_worker_and_a_sender_of_few_rights_do_all_their_work(limited: Callable[[str], DatabaseOptions], tmp_path: Path):
    """Results, a retry, a chord, a revoke and remote control."""
    worker_site = Site(limited("sqlqueue_app"), tmp_path)
    site = Site(limited("sqlqueue_producer"), tmp_path)
    try:
        # While there is no worker: it has to be remembered.
        revoked = site.send("record", "revoked")
        revoked.revoke()
        worker = worker_site.worker("-c2", "-E")
        assert site.send("echo", "here").get(timeout=60) == "here"
        assert site.send("flaky", "again", 1).get(timeout=60) == 1
        assert chord([site.task("add", n, 1) for n in range(5)], site.task("total")).apply_async().get(timeout=60) == 15
        with pytest.raises(TaskRevokedError):
            revoked.get(timeout=60)
        assert len(worker_site.app.control.ping(timeout=10, limit=1)) == 1
        eventually(lambda: worker_site.waiting() == 0)
        assert "permission denied" not in worker.text
    finally:
        worker_site.close()
        site.close()
