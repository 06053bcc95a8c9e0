"""SQLite has one writer: a plain delay() beside an open transaction of the same thread could only time out."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from kombu_sqlqueue import TransactionNotSupportedError

from .workers import Site

DATABASES = ("sqlite",)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
def test_who_would_wait_for_his_own_transaction_is_told_so(site: Site):
    site.send("record", "before")
    engine = sa.create_engine(site.database.url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS own (id INTEGER)"))
    with engine.connect() as connection:
        connection.execute(sa.text("INSERT INTO own VALUES (1)"))
        with pytest.raises(TransactionNotSupportedError, match=r"of this very process.*in_transaction"):
            site.send("record", "beside")
        connection.rollback()
    engine.dispose()
    site.send("record", "after")
    assert site.waiting() == 2


def test_another_process_is_waited_for(site: Site):
    """Its transaction ends whatever we do."""
    hold = f"import sqlite3, time; c = sqlite3.connect({make_url(site.database.url).database!r}, isolation_level=None)"
    hold += "; c.execute('BEGIN IMMEDIATE'); print('begun', flush=True); time.sleep(5); c.execute('COMMIT')"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"begun\n"
        site.send("record", "sent")
    assert site.waiting() == 1
