"""SQLite has one writer: a plain delay() beside an open transaction of the same thread could only time out."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
def test_a_short_transaction_of_this_process_is_not_taken_for_the_one_that_is_waited_for(site: Site):
    """Another process holds the lock, and when it lets go somebody else here is quicker."""

    def write_at_once() -> None:
        connection = sqlite3.connect(str(make_url(site.database.url).database), timeout=0, isolation_level=None)
        while True:
            with suppress(sqlite3.OperationalError):
                connection.execute("BEGIN IMMEDIATE")
                break
        time.sleep(1)
        connection.execute("COMMIT")
        connection.close()

    with another_that_holds(site, 4), ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_at_once)
        site.send("record", "sent")
        writing.result()
    assert site.waiting() == 1


def test_another_process_is_waited_for(site: Site):
    """Its transaction ends whatever we do."""
    with another_that_holds(site, 5):
        site.send("record", "sent")
    assert site.waiting() == 1


@contextmanager
def another_that_holds(site: Site, seconds: float) -> Iterator[None]:
    """Another process that has the lock already, and for as long."""
    hold = f"import sqlite3, time; c = sqlite3.connect({make_url(site.database.url).database!r}, isolation_level=None)"
    hold += f"; c.execute('BEGIN IMMEDIATE'); print('begun', flush=True); time.sleep({seconds}); c.execute('COMMIT')"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"begun\n"
        yield
