"""Links, errbacks, stamps and whole pipelines on one real worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import Signature, StampingVisitor
from celery.exceptions import TimeoutError
from celery.result import AsyncResult, GroupResult, ResultSet

from .workers import Site, eventually

#: Each with workers for minutes: what differs on MariaDB is tested elsewhere.
DATABASES = ("sqlite", "postgresql")


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    environment = shared_site.environment
    settings = {**json.loads(environment["TEST_CONF"]), "imports": ["tests.celery.canvas_tasks"], "result_extended": True}
    environment["TEST_CONF"] = json.dumps(settings)
    shared_site.worker("-c2")
    return shared_site


@pytest.fixture
def t(site: Site) -> Callable[..., Signature]:
    """Signatures by name."""

    def signature(name: str, *args: Any, immutable: bool = False, **kwargs: Any) -> Signature:
        module = "tasks" if name in ("echo", "total", "fail", "record", "add") else "canvas_tasks"
        return site.app.signature(f"tests.celery.{module}.{name}", args, kwargs, immutable=immutable, app=site.app)

    return signature


# -- what comes after ---------------------------------------------------------------------


def test_a_link_runs_after_success_with_the_result(site: Site, t: Callable[..., Signature]):
    """And is the child that the result knows."""
    result = t("echo", 5).apply_async(link=t("plus", 2))
    assert result.get(timeout=60) == 5

    [child] = eventually(lambda: result.children)
    assert child.get(timeout=60) == 7


def test_links_side_by_side_are_one_group(t: Callable[..., Signature]):
    """Celery sends several as one, and the result knows it."""
    result = t("echo", "a").apply_async(link=[t("plus", "b"), t("plus", "c")])
    [child] = eventually(lambda: result.children)

    assert child.get(timeout=60) == ["ab", "ac"]


@pytest.mark.parametrize("errback", ["errback", "old_errback"])
def test_an_errback_runs_after_failure(site: Site, t: Callable[..., Signature], errback: str):
    """Of either kind, once, and the link does not run."""
    result = t("fail", f"for {errback}").apply_async(link=t("record", "never"), link_error=t(errback))
    with pytest.raises(ValueError, match=errback):
        result.get(timeout=60)

    told = {"errback": f"errback ValueError: for {errback}", "old_errback": f"old errback {result.id}"}[errback]
    eventually(lambda: site.marks(told) == [told])
    assert site.marks("never") == []


def test_an_errback_of_a_chain_runs_whichever_task_fails(site: Site, t: Callable[..., Signature]):
    """The tasks after it do not run."""
    failing = chain(t("echo", 1), t("fail", "in the middle", immutable=True), t("record", "beyond", immutable=True))
    failing.on_error(t("errback")).apply_async()

    eventually(lambda: site.marks("errback ValueError: in the middle"))
    assert site.marks("beyond") == []


# -- pipelines ----------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("inside", ["group", "chain"])
def test_results_of_a_group_reach_the_next_group(t: Callable[..., Signature], stages: int, inside: str):
    """Also where the pipeline is a member of another canvas."""
    pipeline = chain(
        group(t("echo", 1), t("echo", 2)), *(group(t("total"), t("total")) for _ in range(stages - 1)), t("total")
    )
    canvas = group([pipeline]) if inside == "group" else chain(pipeline, t("plus", 0))
    expected = 3 * 2 ** (stages - 1)

    assert canvas.apply_async().get(timeout=60) == ([expected] if inside == "group" else expected)


def test_a_wide_pipeline(t: Callable[..., Signature]):
    """A hundred, then a hundred, then one."""
    wide = chain(group(t("echo", i) for i in range(100)), group(t("total") for _ in range(100)), t("total"))

    assert wide.apply_async().get(timeout=60) == 100 * sum(range(100))


def test_a_task_knows_where_it_comes_from(t: Callable[..., Signature]):
    """The root of a chain is its first task, the parent the one before, and in a chord's body the header's end."""
    result = chain(t("lineage"), t("lineage"), t("lineage")).apply_async()
    first, second, third = result.get(timeout=60)

    assert first[1:] == [None, first[0]]
    assert second[1:] == [first[0], first[0]]
    assert third[1:] == [second[0], first[0]]
    assert [third[0], second[0], first[0]] == [result.id, result.parent.id, result.parent.parent.id]


def test_a_chord_can_be_a_member_of_anything(t: Callable[..., Signature]):
    """In a group next to a task, in a chain after a task."""
    sums = chord([t("echo", 1), t("echo", 2)], t("total"))

    assert group(sums, t("echo", 9)).apply_async().get(timeout=60) == [3, 9]
    assert (
        chain(t("echo", 1), chord([t("plus", 1), t("plus", 2)], t("total")), t("plus", 10)).apply_async().get(timeout=60)
        == (1 + 1) + (1 + 2) + 10
    )


# -- stamps -------------------------------------------------------------------------------


class Stamps(StampingVisitor):
    """The same stamp on everything."""

    def on_signature(self, sig: Signature, **headers: Any) -> dict[str, Any]:
        return {"tenant": "acme"}


CANVASES: dict[str, Callable[[Callable[..., Signature]], Signature]] = {
    "a task": lambda t: t("stamped"),
    "a retried task": lambda t: t("stamped", failures=2),
    "the end of a chain": lambda t: chain(t("echo", 1), t("stamped")),
    "the body of a chord": lambda t: chord([t("echo", 1), t("echo", 2)], t("stamped")),
    "the body after a group in a chain": lambda t: chain(group(t("echo", 1), t("echo", 2)), t("stamped")),
}


@pytest.mark.parametrize("name", CANVASES)
def test_stamps_reach_every_task(t: Callable[..., Signature], name: str):
    """Through chains, chords and retries."""
    canvas = CANVASES[name](t)
    canvas.stamp(Stamps())

    assert canvas.apply_async().get(timeout=60) == {"tenant": "acme"}


def test_stamps_reach_a_link(t: Callable[..., Signature]):
    task = t("echo", 1)
    task.link(t("stamped"))
    task.stamp(Stamps())
    result = task.apply_async()
    [child] = eventually(lambda: result.children)

    assert child.get(timeout=60) == {"tenant": "acme"}


# -- retries and failures -----------------------------------------------------------------


def test_a_retry_keeps_headers_and_priority(t: Callable[..., Signature]):
    facts = t("facts_after_retry").apply_async(headers={"tenant": "acme"}, priority=3).get(timeout=60)

    assert facts == {"headers": {"tenant": "acme"}, "priority": 3, "retries": 1}


@pytest.mark.parametrize("name", ["fail_unpackably", "retry_unpackably"])
def test_an_exception_that_cannot_be_rebuilt_is_a_failure_all_the_same(t: Callable[..., Signature], name: str):
    """Its name and its words survive."""
    result = t(name).apply_async()

    assert eventually(lambda: result.ready())
    assert result.state == "FAILURE"
    assert "Unpackable" in repr(result.result)
    assert "cannot" in str(result.result)


def test_a_wrong_call_ends_as_failure(t: Callable[..., Signature]):
    """The worker tells, and goes on."""
    with pytest.raises(TypeError, match="argument"):
        t("echo", 1, 2, 3).apply_async().get(timeout=60)
    assert t("echo", 1).apply_async().get(timeout=60) == 1


# -- results ------------------------------------------------------------------------------


def test_whoever_sends_says_whether_a_result_is_kept(site: Site, t: Callable[..., Signature]):
    """Against what the task says, in both directions."""
    kept = t("unkept", 1).apply_async(ignore_result=False)
    ignored = t("echo", 2).apply_async(ignore_result=True)

    assert kept.get(timeout=60) == 1
    eventually(lambda: site.waiting() == 0)
    assert site.app.backend.get_task_meta(ignored.id)["status"] == "PENDING"


def test_a_result_set_is_joined_in_its_order(t: Callable[..., Signature]):
    """And tells of the first failure, unless it shall not."""
    results = ResultSet([t("slow_echo", i, (3 - i) / 10).apply_async() for i in range(3)])
    results.add(t("echo", 3).apply_async())
    assert results.get(timeout=60) == [0, 1, 2, 3]
    assert results.successful()

    results.add(t("fail", "last").apply_async())
    with pytest.raises(ValueError, match="last"):
        results.get(timeout=60)
    assert results.failed()
    assert [type(each) for each in results.get(timeout=60, propagate=False)] == [int] * 4 + [ValueError]


@pytest.mark.parametrize("join", ["join", "join_native"])
def test_a_join_gives_up_in_time(site: Site, join: str):
    """With the error that Celery has for that."""
    never = [AsyncResult(f"never {number}", app=site.app) for number in range(2)]

    with pytest.raises(TimeoutError):
        getattr(ResultSet(never, app=site.app), join)(timeout=0.2)


def test_a_saved_group_is_joined_by_another(site: Site, t: Callable[..., Signature]):
    """By its id alone."""
    sent = group(t("echo", i) for i in range(3)).apply_async()
    sent.save()

    assert GroupResult.restore(sent.id, app=site.app).get(timeout=60) == [0, 1, 2]
    sent.delete()
    assert GroupResult.restore(sent.id, app=site.app) is None


def test_many_threads_send_and_wait(t: Callable[..., Signature]):
    """One app, one pool of connections."""
    got: list[int] = []

    def send(number: int) -> None:
        got.append(t("plus", number, 1).apply_async().get(timeout=60))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(got) == list(range(1, 21))
