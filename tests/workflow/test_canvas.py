"""A canvas made durable gives what Celery gives, however it is spelled."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import chain, chord, group
from celery.backends import cache
from celery.canvas import Signature, _chain
from celery.contrib.testing.worker import start_worker
from celery.exceptions import ChordError, TimeoutError
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from celery_workflow.building.canvas import durable
from celery_workflow.engine.codec import from_json, to_json
from celery_workflow.engine.definition import Role
from celery_workflow.errors import DefinitionError
from celery_workflow.testing import CRASH_POINTS, WorkflowHarness

from .canvases import canvases, failing_canvases
from .tasks import Planned, act, add, app, double, failed_with_id, failed_with_request, failing, hear, mark, numbers, told

pytestmark = pytest.mark.filterwarnings("ignore:task_allow_error_cb_on_chord_header")


@pytest.fixture(scope="module")
def worker() -> Iterator[None]:
    """Celery itself, in a thread."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with start_worker(app, pool="solo", perform_ping_check=False, loglevel="CRITICAL"):
            yield
    logging.disable(logging.NOTSET)


def run(canvas: Any) -> Any:
    harness = WorkflowHarness(app)
    started = harness.start(canvas)
    harness.run_to_end()
    return started.result()


def by_celery(canvas: Any, *, timeout: float = 30) -> Any:
    # It keeps 5,000 results in all, and a chord whose results are gone waits for ever.
    cache._DUMMY_CLIENT_CACHE.clear()
    return canvas.apply_async().get(timeout=timeout, interval=0.01)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(canvases)
@pytest.mark.usefixtures("worker")
def test_a_canvas_gives_what_celery_gives(canvas: Any):
    ours = run(canvas)

    assert ours == by_celery(canvas)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(failing_canvases)
@pytest.mark.usefixtures("worker")
def test_a_canvas_fails_where_celery_says_it_failed(canvas: Any):
    harness = WorkflowHarness(app)
    started = harness.start(canvas)
    harness.run_to_end()

    if started.status == "succeeded":
        assert started.result() == by_celery(canvas)
    else:
        assert started.errors[0]["error"].message == "boom"
        try:
            with pytest.raises((Planned, ChordError)):
                by_celery(canvas, timeout=10)
        except TimeoutError:
            # Celery itself waits for ever for some chords in a chord that fail.
            reject()


@pytest.mark.soak
@settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(canvases)
@pytest.mark.usefixtures("worker")
def test_soak_of_canvases(canvas: Any):
    ours = run(canvas)

    assert ours == by_celery(canvas)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(canvases)
def test_a_canvas_that_has_been_a_message_gives_the_same_graph(canvas: Any):
    direct = durable(canvas, app=app)
    again = durable(Signature.from_dict(json.loads(json.dumps(canvas)), app=app), app=app)

    assert again == direct
    assert from_json(json.loads(json.dumps(to_json(direct)))) == direct


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(canvases, st.integers(0, 2**32), st.lists(st.sampled_from(CRASH_POINTS), max_size=6))
def test_neither_order_nor_crashes_change_what_a_canvas_gives(canvas: Any, seed: int, crashes: list[str]):
    harness = WorkflowHarness(app, seed=seed)
    for point in crashes:
        harness.crash_at(point)
    started = harness.start(canvas)
    harness.run_to_end()

    assert started.result() == run(canvas)
    assert harness.store.messages == {}


A, B, C, D = (mark.s(letter) for letter in "abcd")
SPELLINGS = [
    (chain(A, B, C), A | B | C, chain(A, chain(B, C)), chain(chain(A, B), C), chain(chain(chain(A)), B, chain(C))),
    (chord([A, B], C), chain(group(A, B), C), group(A, B) | C, chord(group(A, B), C), chain(chain(group(A, B)), C)),
    (A | group(B, C), chain(A, group(B, C)), chain(A, group(group(B, C))), chain(A, group(group(B), C))),
    (chain(A, group(B), C), A | group(B) | C, chain(A, B, C), _chain(A, group(B), C), _chain(A, _chain(B, group(C)))),
    (chain(A, chord([B, C], D)), A | group(B, C) | D, chain(A, group(B, C), D)),
    (chord([A, B], C | D), group(A, B) | C | D, chain(chord([A, B], C), D), chain(group(A, B), chain(C, D))),
    (group(A, B, C), group([A, B, C]), group(group(A, B), C), group(x for x in (A, B, C))),
    (chain(A, group(), B), chain(A, B), _chain(A, group(), B), _chain(group(), A, B)),
]


@pytest.mark.parametrize("spellings", SPELLINGS, ids=lambda spellings: repr(spellings[0])[:60])
def test_equal_spellings_give_equal_graphs(spellings: tuple[Any, ...]):
    definitions = [durable(spelling) for spelling in spellings]

    assert definitions == [definitions[0]] * len(definitions)


def test_groups_in_a_header_keep_the_order_in_which_they_are_written():
    """Celery turns the inner group round."""
    assert run(chord([group(A, B), C], D)) == [[["a"], ["b"], ["c"]], "d"]


def test_a_group_and_a_task_are_a_join_wherever_they_stand():
    """Of this spelling, which `chain` itself would mend, Celery runs the task once for each member of the group."""
    assert run(chord([A], _chain(group(B, C), D))) == [[[[["a"]], "b"], [[["a"]], "c"]], "d"]


def test_a_chord_that_ends_in_a_group_is_joined_by_a_group_as_by_a_task():
    """Celery gives the second group the first result of the first group only."""
    both = [[[["a"]], "b"], [[["a"]], "c"]]
    canvas = chord([A], group(B, C))

    assert run(chain(canvas, D)) == [both, "d"]
    assert run(chain(canvas, group(D, A))) == [[both, "d"], [both, "a"]]


def test_an_empty_group_alone_gives_nothing_in_a_list():
    assert run(group()) == run(_chain(group())) == run(_chain(group(), group())) == []


def test_chunks_inside_a_canvas_give_their_values():
    """Celery would send them off and answer with the ids of their results."""
    assert run(group(add.chunks([(1, 1), (2, 2), (3, 3)], 2)) | mark.s()) == [[[2, 4], [6]]]


def test_two_groups_in_a_row_need_no_edge_for_each_pair():
    definition = durable(chain(group(A for _ in range(50)), group(B for _ in range(50))))

    assert sum(len(step.needs) for step in definition.steps) == 100


def test_a_chain_of_chords_stays_small():
    """Twenty chords of ten are 220 tasks, not a message for each way through them."""
    canvas = chain(*[chord([double.si(n) for n in range(10)], mark.s()) for _ in range(20)])

    definition = durable(canvas)

    assert len(definition.steps) == 220
    assert len(json.dumps(to_json(definition))) < 100_000
    assert run(canvas) == [[2 * n for n in range(10)]]


def test_options_headers_and_stamps_are_kept():
    signature = add.s(1, 2).set(queue="slow", priority=7, headers={"who": "me"}, time_limit=30, countdown=5)
    signature.stamp(tenant="t1")

    call = durable(signature).steps[0].call

    assert call is not None
    assert call.options | {"queue": "slow", "priority": 7, "headers": {"who": "me"}, "time_limit": 30} == call.options
    assert call.options["stamped_headers"] == ["tenant"]
    assert call.options["tenant"] == "t1"
    assert call.countdown == 5


def test_an_eta_is_when_the_step_runs(harness: WorkflowHarness):
    started = harness.start(act.s("later").set(eta=datetime(2026, 1, 2, tzinfo=UTC)))
    harness.advance(hours=23)
    assert told == []

    harness.advance(hours=1)

    assert started.result() == "later"


def test_options_of_a_group_are_those_of_its_members():
    definition = durable(group(A, B.set(queue="own")).set(queue="all"))

    assert [step.call and step.call.options for step in definition.steps] == [{"queue": "all"}] * 2


def test_a_callback_gets_the_result_and_harms_nobody(harness: WorkflowHarness):
    signature = add.s(1, 2)
    signature.link(hear.s("why"))
    signature.link(act.si("bad") | hear.si("never"))
    failing["bad"] = 1

    started = harness.start(signature | double.s())
    harness.run_to_end()

    assert started.result() == 6
    assert ("heard", 3, "why") in told
    assert ("heard", "never") not in told
    assert [one["error"].type for one in started.errors] == ["Planned"]


def test_an_error_callback_hears_of_the_failed_task_once(harness: WorkflowHarness):
    """Celery may call it once for each failed task of a header."""
    failing.update({"one": 1, "two": 1})
    canvas = chord([act.si("one"), act.si("two"), act.si("three")], mark.s()).on_error(failed_with_id.s())

    started = harness.start(canvas)
    harness.run_to_end()

    assert started.status == "failed"
    assert [entry for entry in told if entry[0] == "failed"] == [("failed", started.steps()["act"].task_id)]
    assert started.steps()["mark"].status == "cancelled"


def test_an_error_callback_with_three_arguments_gets_request_and_exception(harness: WorkflowHarness):
    failing["it"] = 1

    started = harness.start(act.si("it").on_error(failed_with_request.s()))
    harness.run_to_end()

    assert told[-1] == (started.steps()["act"].task_id, "Planned", "it")


def test_an_error_callback_of_another_task_stays_silent(harness: WorkflowHarness):
    failing["second"] = 1

    started = harness.start(chain(act.si("first").on_error(failed_with_id.s()), act.si("second")))
    harness.run_to_end()

    assert started.status == "failed"
    assert told == ["first", "second"]


def test_error_callbacks_are_handlers_of_the_steps_they_belong_to():
    definition = durable(chain(A, B).on_error(failed_with_id.s()))

    handlers = [step for step in definition.steps if step.role is Role.ON_FAILURE]
    assert [(step.name, step.of) for step in handlers] == [("failed_with_id", ("mark", "mark-2"))]


def test_what_is_no_canvas_is_refused():
    with pytest.raises(DefinitionError, match="not a canvas: 3"):
        durable(3)


def test_a_callback_of_a_group_is_refused_as_in_celery():
    canvas = chain(A, group(B, C))
    canvas.link(D)
    with pytest.raises(DefinitionError, match="a group has no callbacks"):
        durable(canvas)


def test_an_error_callback_that_is_a_canvas_is_refused_by_name():
    with pytest.raises(DefinitionError, match=r"an error callback is one task, not .*failed_with_id"):
        durable(add.s(1, 2).on_error(failed_with_id.s() | hear.s()))


def test_a_canvas_of_a_task_that_returns_a_list_can_be_mapped(harness: WorkflowHarness):
    assert run(numbers.s(3) | mark.s()) == [[0, 1, 2]]
