"""A line that is cut at every point of a publish: what returned is stored once, what raised at most once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from celery import Celery
from sqlalchemy import func, select
from sqlalchemy.engine import make_url

from kombu_sqlqueue.errors import OutcomeUnknownError, StoreUnavailableError
from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..databases import requires
from ..proxy import Proxy
from .cut_lines import KINDS, Line, by_way_of

pytestmark = requires(Capability.CONCURRENT_WRITERS)

#: How often each point is cut.
TIMES = {"postgresql": 5, "mysql": 2}
PORTS = {"postgresql": 5432, "mysql": 3306}
#: Statements are said in words each time, and the line is not encrypted.
PLAIN = {"postgresql": {"sslmode": "disable", "prepare_threshold": "none"}, "mysql": {}}


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    url = make_url(database.options.url)
    with Proxy((url.host or "127.0.0.1", url.port or PORTS[database.dialect.name])) as proxy:
        yield proxy


@pytest.fixture
def line(database: Database, proxy: Proxy) -> Iterator[Line]:
    options = by_way_of(proxy, database.options, **PLAIN[database.dialect.name])
    beside = SQLMessageStore(database)
    with Celery(set_as_current=False, broker=f"sqlqueue+{options.url}", backend=f"sqlqueue+{options.url}") as app:
        app.conf.broker_transport_options = {"schema": options.schema}
        app.conf.task_publish_retry_policy = {"interval_start": 0}
        yield Line(options, app, beside, beside.enrol("test", lease_for=timedelta(hours=1)))
    process_for(options).close()


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("answered", [False, True], ids=["unheard", "unanswered"])
def test_a_line_may_be_cut_at_any_point_of_a_publish(
    database: Database, proxy: Proxy, line: Line, kind: str, answered: bool
):
    """Before BEGIN, before and after each statement and the COMMIT: all of it is stored once, or it raises."""
    send, many = KINDS[kind]
    times = TIMES[database.dialect.name]
    send(line, ids("warm", many))  # connects, declares, learns its routes
    unknown: list[int] = []
    point = 0
    while proxy.broken == point * times:
        for nth in range(times):
            unknown += [point] * cut(
                database, proxy, line, kind, point, answered=answered, tasks=ids(f"{point} {nth}", many)
            )
        point += 1
    last = proxy.broken // times - 1
    assert last >= 2
    # Whatever was said last was the commit.
    assert set(unknown) == (set() if Capability.COMMIT_STATUS in database.dialect.capabilities else {last})


def cut(database: Database, proxy: Proxy, line: Line, kind: str, point: int, *, answered: bool, tasks: list[str]) -> bool:
    """Send the tasks while the line is cut there, if that much is said. The answer is whether it is unknown what became of them."""
    process_for(line.options).database.ping()  # connected
    proxy.break_at(b"", skip=point, answered=answered)
    unknown = False
    try:
        KINDS[kind][0](line, tasks)
    except OutcomeUnknownError:
        unknown = True
    proxy.break_nowhere()
    copies = stored(database, tasks)
    assert copies == [1] * len(tasks) or (unknown and not answered and copies == [0] * len(tasks)), (point, copies)
    return unknown


def test_a_publish_on_a_line_that_stalls_goes_on_when_the_line_does(database: Database, proxy: Proxy, line: Line):
    """As if the server had been stopped for a moment: late, and stored once."""
    line.one(["before"])
    proxy.stall()
    sending = threading.Thread(target=line.one, args=(["stalled"],))
    sending.start()
    sending.join(1)
    assert sending.is_alive()
    proxy.flow()
    sending.join(20)

    assert stored(database, ["stalled"]) == [1]


def test_on_mariadb_an_option_says_how_long_a_server_may_be_silent(database: Database, proxy: Proxy):
    """`read_timeout` in the URL, in seconds: a publish raises then."""
    if database.dialect.name != "mysql":
        pytest.skip("the driver of PostgreSQL has none")
    distant = Database(by_way_of(proxy, database.options, read_timeout="1", connect_timeout="1"))
    store = SQLMessageStore(distant)
    store.publish([NewMessage(queue="q", body=b"", envelope="{}")])
    proxy.stall()
    with pytest.raises(StoreUnavailableError):
        store.publish([NewMessage(queue="q", body=b"", envelope="{}")])
    proxy.flow()
    distant.dispose()


def ids(name: str, many: int) -> list[str]:
    return [f"{name} {part}" for part in range(many)]


def stored(database: Database, tasks: list[str]) -> list[int]:
    """How many messages each of the tasks has."""
    m = database.tables.message.c
    counted = select(m.task_id, func.count()).where(m.task_id.in_(tasks)).group_by(m.task_id)
    found = Counter(dict(database.run(lambda tx: tx.execute(counted).all())))
    return [found[task] for task in tasks]
