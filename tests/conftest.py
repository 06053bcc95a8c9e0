"""Fixtures for every test: a clock that stands still, and each database in turn."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kombu_sqlqueue.clock import FakeClock
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore

from .databases import DATABASES, wipe


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", action="append", choices=list(DATABASES), help="run on this database only; repeatable")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requires(capability): run only on databases that can do this")
    config.addinivalue_line("markers", "soak: takes many minutes; run by `make soak`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_name" in metafunc.fixturenames:
        # What no database does in a way of its own is tried on some of them, unless told otherwise.
        usual = getattr(metafunc.module, "DATABASES", list(DATABASES))
        names = metafunc.config.getoption("--database") or usual
        metafunc.parametrize("database_name", names, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the processes of a test that failed said last."""
    report = yield
    if report.failed:
        for directory in _directories(item):
            for log in sorted(directory.glob("*.log")):
                report.sections.append((f"end of {log.name}", "\n".join(log.read_text(errors="replace").splitlines()[-40:])))
    return report


def _directories(item: Any) -> set[Path]:
    used = getattr(item, "funcargs", {}).values()
    return {each for value in used if isinstance(each := getattr(value, "directory", value), Path)}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from .scheduling import BySharedFixtures

    return BySharedFixtures(config, log)


@pytest.fixture(scope="session")
def databases() -> Iterator[dict[str, DatabaseOptions]]:
    """The databases opened so far: each is made once a session, when a test first asks for it."""
    with ExitStack() as stack:
        yield _Opened(stack)


class _Opened(dict[str, DatabaseOptions]):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, name: str) -> DatabaseOptions:
        self[name] = options = self._stack.enter_context(DATABASES[name]())
        return options


@pytest.fixture
def database_options(databases: dict[str, DatabaseOptions], database_name: str) -> DatabaseOptions:
    """Where the tables are: for tests that open a `Database` themselves, perhaps in another process."""
    return databases[database_name]


@pytest.fixture(autouse=True)
def loglevel() -> None:
    """As it is at the start: a worker within the process of the tests sets that of all loggers, and leaves it so."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture
def clock() -> FakeClock:
    """What the database of the test takes for the time."""
    return FakeClock()


@pytest.fixture
def database(request: pytest.FixtureRequest, database_options: DatabaseOptions, clock: FakeClock) -> Iterator[Database]:
    """Each database in turn, its tables as the migrations made them."""
    database = Database(database_options, clock=clock)
    for marker in request.node.iter_markers("requires"):
        for capability in marker.args:
            if capability not in database.dialect.capabilities:
                pytest.skip(f"{database.dialect.name} cannot do {capability.name}")
    yield database
    still_out = database.engine.pool.checkedout()
    try:
        wipe(database)
    finally:
        database.dispose()
    assert still_out == 0, "a connection was not given back"


@pytest.fixture
def store(database: Database) -> SQLMessageStore:
    return SQLMessageStore(database)
