"""How a change of a SQLite file is noticed, be it told by the system or looked for."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kombu_sqlqueue.sql.stirs import Stirs
from kombu_sqlqueue.sql.watch import File, Watcher

#: Long enough for a busy machine; nobody waits it out when all is well.
SOON = 10.0
#: Long enough for a change that should not come, and to see how often it is looked for.
A_WHILE = 0.5


class Counted(File):
    """A file that counts how often it is looked at."""

    looks = 0

    def version(self) -> int:
        self.looks += 1
        return super().version()


class Deaf:
    """What would tell of writing, on a file system where nobody is told."""

    def __init__(self) -> None:
        self._ends = socket.socketpair()
        self.closed = False

    def fileno(self) -> int:
        return self._ends[0].fileno()

    def watch(self, path: str) -> bool:
        return True

    def drain(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
        for end in self._ends:
            end.close()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    writer = sqlite3.connect(tmp_path / "file.db", isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE t (x)")
    yield writer
    writer.close()


@pytest.fixture
def watch(tmp_path: Path, writer: sqlite3.Connection) -> Iterator[Callable[[], tuple[Watcher, Counted]]]:
    watchers = []

    def watch() -> tuple[Watcher, Counted]:
        """A watcher to whom nothing has happened for a while, and its file."""
        file = Counted(str(tmp_path / "file.db"))
        watcher = Watcher(lambda: file)
        watchers.append(watcher)
        assert watcher.wait(SOON) is None
        assert watcher.wait(A_WHILE) == frozenset()
        return watcher, file

    yield watch
    for watcher in watchers:
        watcher.close()


@pytest.fixture(params=["told", "untold", "deaf"])
def stirs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the system tells of writing."""
    if request.param != "told":
        monkeypatch.setattr(Stirs, "opened", Deaf if request.param == "deaf" else lambda: None)
    return str(request.param)


def test_each_change_is_noticed(stirs: str, watch: Callable[[], tuple[Watcher, Counted]], writer: sqlite3.Connection):
    watcher, _ = watch()
    for number in range(3):
        writer.execute("INSERT INTO t VALUES (?)", (number,))
        assert watcher.wait(SOON) is None
    assert watcher.wait(A_WHILE) == frozenset()

    writer.execute("DELETE FROM t")
    assert watcher.wait(SOON) is None


def test_what_is_written_long_before_its_commit_is_noticed_at_that(
    stirs: str, watch: Callable[[], tuple[Watcher, Counted]], writer: sqlite3.Connection
):
    watcher, _ = watch()
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO t VALUES (?)", [("x" * 5000,)] * 100)
    assert watcher.wait(A_WHILE) == frozenset()

    writer.execute("COMMIT")
    assert watcher.wait(SOON) is None


def test_a_log_that_begins_anew_is_watched(
    stirs: str, watch: Callable[[], tuple[Watcher, Counted]], writer: sqlite3.Connection
):
    watcher, _ = watch()
    writer.execute("INSERT INTO t VALUES (1)")
    assert watcher.wait(SOON) is None
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    watcher.wait(A_WHILE)

    writer.execute("INSERT INTO t VALUES (2)")
    assert watcher.wait(SOON) is None


@pytest.mark.skipif(Stirs.opened() is None, reason="this system does not tell of writing")
def test_who_is_told_of_writing_seldom_looks(watch: Callable[[], tuple[Watcher, Counted]]):
    watcher, file = watch()
    file.looks = 0
    assert watcher.wait(A_WHILE) == frozenset()

    assert file.looks <= 10


def test_where_nobody_is_ever_told_one_looks_by_oneself(
    watch: Callable[[], tuple[Watcher, Counted]], writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    deaf = Deaf()
    monkeypatch.setattr(Stirs, "opened", lambda: deaf)
    watcher, _ = watch()
    assert not deaf.closed

    writer.execute("INSERT INTO t VALUES (1)")
    assert watcher.wait(SOON) is None
    assert deaf.closed
