"""Chords and other canvases on a real worker, and what survives when it is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.app.task import Context
from celery.canvas import Signature
from celery.exceptions import ChordError
from sqlalchemy import func, select

from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from .workers import Site, eventually

CANVAS = {"imports": ["tests.celery.canvas_tasks"]}


class Tasks:
    """Signatures by name: the tasks themselves live in the worker."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __call__(self, name: str, *args: Any, **options: Any) -> Signature:
        module = "tasks" if name in ("echo", "total", "fail") else "canvas_tasks"
        return self.site.app.signature(f"tests.celery.{module}.{name}", args, options=options, app=self.site.app)


@pytest.fixture
def canvas_site(make_site: Callable[..., Site]) -> Site:
    return make_site(**CANVAS)


def fixed(task: Signature) -> Signature:
    """The task with its own arguments only."""
    task.set_immutable(True)
    return task


#: What to run, made from tasks `t`, and what it returns.
CANVASES: dict[str, tuple[Callable[[Tasks], Any], Any]] = {
    "a chord": (lambda t: chord([t("echo", 1), t("echo", 2), t("echo", 3)], t("total")), 6),
    "the order of the header, not of the ends": (
        lambda t: chord([t("slow_echo", i, (3 - i) / 10) for i in range(4)], t("body")),
        [0, 1, 2, 3],
    ),
    "an empty header": (lambda t: chord([], t("body")), []),
    "a header of one": (lambda t: chord([t("echo", 1)], t("body")), [1]),
    "a header from a generator": (lambda t: chord((t("echo", i) for i in range(5)), t("body")), [0, 1, 2, 3, 4]),
    "a wide header": (lambda t: chord([t("echo", i) for i in range(150)], t("total")), sum(range(150))),
    "tasks whose result nobody keeps": (lambda t: chord([t("unkept", 1), t("unkept", 2)], t("body")), [1, 2]),
    "a chord in a header": (
        lambda t: chord([chord([t("echo", 1), t("echo", 2)], t("total")), t("echo", 4)], t("body")),
        [3, 4],
    ),
    "a chain in a header": (lambda t: chord([chain(t("echo", 1), t("plus", 2)), t("echo", 4)], t("body")), [3, 4]),
    "a group in a header, which Celery flattens from its end": (
        lambda t: chord([t("echo", 1), group(t("echo", 2), t("echo", 3)), t("echo", 4)], t("body")),
        [1, 3, 2, 4],
    ),
    "a chain that ends in a group, in a header": (
        lambda t: chord([chain(t("echo", 1), group(t("plus", 1), t("plus", 2))), t("echo", 9)], t("body")),
        [[2, 3], 9],
    ),
    "a chain body": (lambda t: chord([t("echo", 1), t("echo", 2)], chain(t("total"), t("plus", 10))), 13),
    "a group body": (lambda t: chord([t("echo", 1), t("echo", 2)], group(t("total"), t("body"))), [3, [1, 2]]),
    "a chord body": (lambda t: chord([t("echo", 1), t("echo", 2)], chord([t("total"), t("total")], t("total"))), 6),
    "a group before a task": (lambda t: group(t("echo", 1), t("echo", 2)) | t("total"), 3),
    "two groups in a chain": (
        lambda t: chain(group(t("echo", 1), t("echo", 2)), group(t("total"), t("total")), t("total")),
        6,
    ),
    "three levels": (
        lambda t: chain(
            group(chain(t("echo", i), group(t("plus", 1), t("plus", 2)), t("total")) for i in range(3)),
            t("body"),
            t("total"),
        ),
        (1 + 2) + (2 + 3) + (3 + 4),
    ),
    "a header that adds to itself": (lambda t: chord([t("adding", 1), t("echo", 9)], t("total")), 1 + 2 + 3 + 9),
    "one replaced by a task": (lambda t: chord([t("replaced", "task"), t("echo", 1)], t("body")), [5, 1]),
    "one replaced by a chain": (lambda t: chord([t("replaced", "chain"), t("echo", 1)], t("body")), [5, 1]),
    "one replaced by a group": (lambda t: chord([t("replaced", "group"), t("echo", 1)], t("body")), [[2, 3], 1]),
    "one replaced by a chord": (lambda t: chord([t("replaced", "chord"), t("echo", 1)], t("body")), [5, 1]),
    "a body replaced": (lambda t: chord([t("echo", 1)], fixed(t("replaced", "group"))), [2, 3]),
}


def test_canvases(canvas_site: Site):
    """Each returns what it should, and none of them polls."""
    worker = canvas_site.worker("-c2")
    tasks = Tasks(canvas_site)
    sent = {name: make(tasks).apply_async() for name, (make, _) in CANVASES.items()}
    returned = {name: result.get(timeout=20, propagate=False) for name, result in sent.items()}

    assert returned == {name: expected for name, (_, expected) in CANVASES.items()}
    assert "chord_unlock" not in worker.text
    eventually(lambda: canvas_site.waiting() == 0)
    assert leftovers(canvas_site) == 0


def leftovers(site: Site) -> int:
    """Parts of chords that are still in the database."""
    database = process_for(site.database).database
    return database.statement(lambda tx: tx.scalar(select(func.count()).select_from(database.tables.chord_part)))


def test_a_group_returns_in_order(canvas_site: Site):
    """Joined with one query, whatever the order in which its tasks end."""
    canvas_site.worker("-c2")
    tasks = Tasks(canvas_site)

    assert group(tasks("slow_echo", i, (5 - i) / 20) for i in range(6)).apply_async().get(timeout=60) == list(range(6))


def test_a_frozen_chord_may_be_applied_again(canvas_site: Site):
    """Same ids, a new run."""
    canvas_site.worker()
    tasks = Tasks(canvas_site)
    twice = chord([tasks("part", 1), tasks("part", 2)], tasks("body"))
    twice.freeze()
    for times in (1, 2):
        twice.apply_async()
        eventually(lambda times=times: len(canvas_site.marks("body [1, 2]")) == times)


# -- failures -----------------------------------------------------------------------------


def test_a_failing_header_fails_the_body_once(canvas_site: Site):
    """The error names the task, the errback is called once, the body never runs, the others have ended well."""
    canvas_site.worker("-c2")
    tasks = Tasks(canvas_site)
    bad = tasks("fail", "on purpose", immutable=True)
    good = [tasks("echo", 1), tasks("echo", 2)]
    result = chord([good[0], bad, good[1]], tasks("body").on_error(tasks("errback"))).apply_async()

    with pytest.raises(ChordError, match=rf"Dependency {result.parent[1].id} raised ValueError\('on purpose'"):
        result.get(timeout=20, follow_parents=False)
    assert [member.state for member in result.parent] == ["SUCCESS", "FAILURE", "SUCCESS"]
    with pytest.raises(ValueError, match="on purpose"):
        result.get(timeout=60)  # Celery's default: the failure where it began
    time.sleep(0.5)
    [mark] = canvas_site.marks()
    assert mark.startswith(f"errback ChordError: Dependency {result.parent[1].id}")


@pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")
def test_an_errback_of_several_levels_is_called_once(canvas_site: Site):
    """Celery links it to the body of an inner chord, too; one failure is told once."""
    canvas_site.worker("-c2")
    tasks = Tasks(canvas_site)
    inner = chord([fixed(tasks("fail")), tasks("echo", 1)], tasks("body"))
    outer = chord([inner, tasks("echo", 2)], tasks("body"))
    outer.link_error(tasks("old_errback"))
    result = outer.apply_async()

    eventually(lambda: result.state == "FAILURE")
    eventually(lambda: canvas_site.marks())
    time.sleep(1)
    assert len(canvas_site.marks()) == 1


def test_errbacks_of_one_argument_are_sent_as_tasks(canvas_site: Site):
    """Those of the old kind get the id of the body."""
    canvas_site.worker()
    tasks = Tasks(canvas_site)
    result = chord([tasks("fail")], tasks("body").on_error(tasks("old_errback"))).apply_async()

    eventually(lambda: canvas_site.marks() == [f"old errback {result.id}"])


def bad(t: Tasks) -> list[Signature]:
    """A header of which one task fails."""
    return [fixed(t("fail")), t("echo", 1)]


#: Canvases in which something fails. Some of them hang for ever on other backends.
FAILING: dict[str, Callable[[Tasks], Any]] = {
    "in a chain in a header": lambda t: chord(
        [chain(t("echo", 1), fixed(t("fail")), t("echo", 1)), t("echo", 2)], t("body")
    ),
    "in a chord in a header": lambda t: chord([chord(bad(t), t("body")), t("echo", 2)], t("body")),
    "three levels down": lambda t: chord(
        [chord([chord(bad(t), t("body")), t("echo", 3)], t("body")), t("echo", 2)], t("body")
    ),
    "in a chord with a chain body": lambda t: chord(
        [chord(bad(t), chain(t("total"), t("plus", 1))), t("echo", 2)], t("body")
    ),
    "in a chord with a group body": lambda t: chord([chord(bad(t), group(t("body"), t("body"))), t("echo", 2)], t("body")),
    "in a chord in a chain": lambda t: chord(
        [chain(t("echo", 1), chord(bad(t), t("total")), t("plus", 1)), t("echo", 2)], t("body")
    ),
    "in a chord that replaced a task": lambda t: chord([t("replaced", "bad chord"), t("echo", 2)], t("body")),
    "in a body": lambda t: chord([chord([t("echo", 1)], t("fail")), t("echo", 2)], t("body")),
    "before a chain": lambda t: chord(bad(t), chain(t("total"), t("plus", 1))),
    "before a group": lambda t: chord(bad(t), group(t("total"), t("total"))),
    "before a chord": lambda t: chord(bad(t), chord([t("total"), t("total")], t("total"))),
    "before a group, in a chain": lambda t: chain(fixed(t("fail")), group(t("plus", 1), t("plus", 2))),
    "before a group before a task": lambda t: chain(chord(bad(t), t("total")), group(t("plus", 1), t("plus", 2)), t("body")),
}


def test_every_canvas_with_a_failure_ends(canvas_site: Site):
    """All that depends on the failure fails, however deep it sits; nothing goes on waiting or polling."""
    worker = canvas_site.worker("-c2")
    tasks = Tasks(canvas_site)
    sent = {name: make(tasks).apply_async() for name, make in FAILING.items()}

    def states() -> dict[str, set[str]]:
        return {name: {member.state for member in getattr(result, "results", [result])} for name, result in sent.items()}

    eventually(lambda: all(found <= {"SUCCESS", "FAILURE"} for found in states().values()))
    assert states() == {name: {"FAILURE"} for name in FAILING}
    assert canvas_site.marks() == []
    assert "chord_unlock" not in worker.text


def test_a_body_that_cannot_be_sent_fails(make_site: Callable[..., Site]):
    """The values cannot be packed with the body's serializer: nobody waits for ever, and no part is lost for that."""
    site = make_site(**CANVAS, result_serializer="pickle", accept_content=["json", "pickle"])
    site.worker()
    tasks = Tasks(site)
    result = chord([tasks("unpackable"), tasks("echo", 1)], tasks("body")).apply_async()

    with pytest.raises(ChordError, match="Callback error"):
        result.get(timeout=20, follow_parents=False)
    assert result.parent[0].state == "SUCCESS"


def test_an_expired_part_fails_the_chord(canvas_site: Site):
    """Revoked is an end, too."""
    tasks = Tasks(canvas_site)
    result = chord([tasks("echo", 1), tasks("echo", 2).set(expires=0.1)], tasks("body")).apply_async()
    time.sleep(0.2)
    canvas_site.worker()

    with pytest.raises(ChordError, match="TaskRevokedError"):
        result.get(timeout=20, follow_parents=False)


# -- once ---------------------------------------------------------------------------------


def header_of(site: Site, size: int) -> tuple[Any, list[Context]]:
    """A chord whose header nobody runs; its body's result, and what a worker would know of each part."""
    tasks = Tasks(site)
    body = tasks("body")
    result = chord([tasks("part", i) for i in range(size)], body).apply_async(queue="nobody")
    requests = [
        Context(
            {
                "id": member.id,
                "task": "part",
                "group": result.parent.id,
                "group_index": i,
                "chord": dict(tasks("body", task_id=result.id)),
                "properties": {"delivery_tag": f"{i + 1}:1"},
                "delivery_info": {},
            }
        )
        for i, member in enumerate(result.parent)
    ]
    return result, requests


def test_a_part_told_again_counts_once(canvas_site: Site):
    """Redelivered before the end or after it: one body, and the first SUCCESS is what it gets."""
    _, requests = header_of(canvas_site, 2)
    backend = canvas_site.app.backend
    for value, request in [(10, 0), (99, 0), (11, 1), (12, 1), (13, 0)]:
        backend.mark_as_done(requests[request].id, value, requests[request])
    assert canvas_site.counts().ready == 1
    canvas_site.worker()

    eventually(lambda: canvas_site.marks() == ["body [10, 11]"])


def test_a_part_that_was_stored_but_not_counted_is_counted_at_its_redelivery(canvas_site: Site):
    """Its SUCCESS stands, so nothing is stored; the chord goes on all the same."""
    _, requests = header_of(canvas_site, 1)
    backend = canvas_site.app.backend
    backend.store_result(requests[0].id, 1, "SUCCESS", request=requests[0])
    backend.mark_as_done(requests[0].id, 1, requests[0])

    assert canvas_site.counts().ready == 1


def test_a_later_success_takes_the_place_of_a_failure(canvas_site: Site):
    """A part that failed and is delivered again before the chord is over."""
    _, requests = header_of(canvas_site, 2)
    backend = canvas_site.app.backend
    backend.mark_as_failure(requests[0].id, ValueError("lost"), request=requests[0])
    requests[0].properties = {"delivery_tag": "1:2"}
    backend.mark_as_done(requests[0].id, "found", requests[0])
    backend.mark_as_done(requests[1].id, 1, requests[1])
    canvas_site.worker()

    eventually(lambda: canvas_site.marks() == ["body ['found', 1]"])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_killed_while_it_sends_the_body_loses_nothing(canvas_site: Site, moment: str):
    """kill -9 of parent and children inside the transaction of the last part: the body runs, once."""
    tasks = Tasks(canvas_site)
    canvas_site.environment["TEST_DIES"] = moment
    first = canvas_site.worker()
    result = chord([tasks("part", 1), tasks("part", 2)], tasks("fragile_body")).apply_async()
    first.process.wait(60)
    assert result.state == "PENDING"
    assert "PENDING" in [member.state for member in result.parent]
    canvas_site.worker()

    assert result.get(timeout=60) == [1, 2]
    eventually(lambda: canvas_site.waiting() == 0)
    assert canvas_site.marks("fragile body [1, 2]") == ["fragile body [1, 2]"]


def test_another_broker_gets_the_body_too(make_site: Callable[..., Site], database_options: DatabaseOptions, tmp_path: Path):
    """Results here, messages elsewhere."""
    here = {"schema": database_options.schema}
    site = make_site(options={"schema": None}, result_backend_transport_options=here, **CANVAS)
    site.app.conf.broker_url = site.environment["TEST_BROKER_URL"] = f"sqlqueue+sqlite:///{tmp_path}/other.db"
    site.worker("-c2")
    tasks = Tasks(site)

    assert chord([tasks("echo", 1), tasks("echo", 2)], tasks("total")).apply_async().get(timeout=60) == 3
    with pytest.raises(ChordError):
        chord([tasks("fail"), tasks("echo", 2)], tasks("total")).apply_async().get(timeout=20, follow_parents=False)
