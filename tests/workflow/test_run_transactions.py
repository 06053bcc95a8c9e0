"""A step that ends in a transaction of its app: rows, outcome and successors are one commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery.result import AsyncResult

from celery_workflow import NotInStepError, current
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..celery.workers import eventually
from .apps import wipe_all
from .run_sites import RunSite, of_each_step


@pytest.fixture(scope="module")
def site(
    databases: dict[str, DatabaseOptions], database_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunSite]:
    """A worker and a table of the app's own."""
    options = databases[database_name]
    site = RunSite(options, tmp_path_factory.mktemp("site"), options={"max_reclaims": 20})
    site.sql(f"CREATE TABLE {table(site)} (id INTEGER PRIMARY KEY, owner VARCHAR(99))")
    site.worker("-c2")
    yield site
    site.close()
    site.sql(f"DROP TABLE {table(site)}")
    process_for(options).close()
    wipe_all(site.app)


def table(site: RunSite) -> str:
    return f"{site.database.schema}.booking" if site.database.schema else "booking"


def bookings(site: RunSite, owner: str) -> int:
    return int(site.sql(f"SELECT count(*) FROM {table(site)} WHERE owner = :owner", owner=owner)[0][0])


def test_outside_of_a_step_there_is_no_current_one():
    with pytest.raises(NotInStepError):
        current()


@pytest.mark.parametrize("session", ["sessionmaker", "session", "connection"])
def test_rows_outcome_and_successors_are_one_commit(site: RunSite, session: str):
    owner = f"ann {session}"
    run = site.run(site.tasks.book.s(site.database.url, table(site), owner, session), site.tasks.note.s(f"after {owner}"))

    assert run.result(60) == f"after {owner}"
    assert bookings(site, owner) == 1
    step = run.steps()["book"]
    assert step.result == {"booked": owner}
    found = AsyncResult(step.task_id, app=site.app)
    assert (found.get(timeout=30), found.state) == ({"booked": owner}, "SUCCESS")
    assert of_each_step(run) == {("book", None): 1, ("note", None): 1}
    eventually(lambda: site.messages() == 0)


def test_so_with_a_connection_of_the_driver(site: RunSite):
    if site.home.database.dialect.name != "postgresql":
        pytest.skip("tried with psycopg")
    run = site.run(site.tasks.book.s(site.database.url, table(site), "dora", "driver"), site.tasks.note.s("after dora"))
    assert run.result(60) == "after dora"
    assert bookings(site, "dora") == 1


def test_an_error_in_the_block_leaves_nothing_and_the_step_is_tried_again(site: RunSite):
    run = site.run(
        site.tasks.book_badly.s(site.database.url, table(site), "bob", "raise"),
        site.tasks.echo.s("after"),
        retry={"max_attempts": 3, "delay": 0},
    )
    assert run.result(60) == "after"
    assert bookings(site, "bob") == 1
    assert [entry["error"].message for entry in run.errors] == ["first time"]


def test_a_process_that_dies_before_the_commit_leaves_nothing(site: RunSite):
    run = site.run(site.tasks.book_badly.s(site.database.url, table(site), "carl", "die"), site.tasks.note.s("after carl"))
    assert run.result(60) == "after carl"
    assert bookings(site, "carl") == 1
    assert (len(site.marks("carl books")), site.marks("after carl")) == (2, ["after carl"])
    assert of_each_step(run) == {("book_badly", None): 1, ("note", None): 1}


def test_a_block_that_does_not_complete_is_an_error(site: RunSite):
    run = site.ended(site.run(site.tasks.book_badly.s(site.database.url, table(site), "dan", "forget")))
    assert (run.status, run.stored.record.error.type) == ("failed", "WorkflowError")
    assert "was not completed" in run.stored.record.error.message
    assert bookings(site, "dan") == 0


def test_completing_twice_is_an_error_and_leaves_nothing(site: RunSite):
    run = site.ended(site.run(site.tasks.book_badly.s(site.database.url, table(site), "eve", "twice")))
    assert (run.status, run.stored.record.error.type) == ("failed", "WorkflowError")
    assert "twice" in run.stored.record.error.message or "already" in run.stored.record.error.message
    assert bookings(site, "eve") == 0


def test_completing_outside_of_a_transaction_is_an_error(site: RunSite):
    run = site.ended(site.run(site.tasks.complete_alone.s()))
    assert (run.status, run.stored.record.error.type) == ("failed", "WorkflowError")


def test_what_fails_after_the_commit_changes_nothing(site: RunSite):
    """The step is over: its exception is that of a task which has ended already."""
    run = site.run(
        site.tasks.book_badly.s(site.database.url, table(site), "fay", "raise after"), site.tasks.note.s("after fay")
    )
    assert run.result(60) == "after fay"
    assert bookings(site, "fay") == 1
    found = AsyncResult(run.steps()["book_badly"].task_id, app=site.app)
    assert (found.state, found.result) == ("SUCCESS", "fay")


def test_a_lost_lease_leaves_nothing(site: RunSite):
    """The block is completed by one who was taken for dead meanwhile: another has the step, and books."""
    run = site.run(site.tasks.book_late.s(site.database.url, table(site), "gil", str(site.directory / "gil")))
    eventually(lambda: site.marks("gil waits"))
    # As if its lease had ended: the message is ready again, and somebody has it.
    site.sql(
        "UPDATE {queue_message} SET deliveries = deliveries + 1 WHERE task_id = :id", id=run.steps()["book_late"].task_id
    )
    (site.directory / "gil").touch()
    eventually(lambda: site.marks("gil failed"))
    assert bookings(site, "gil") == 0
    assert run.status == "running"
    run.cancel()
