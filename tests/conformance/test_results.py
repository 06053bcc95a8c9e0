"""The result store and the chord store, sentence by sentence, on each database."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from kombu_sqlqueue.messages import Lease
from kombu_sqlqueue.results import NewResult, Part, wins
from kombu_sqlqueue.sql.chords import SQLChordStore
from kombu_sqlqueue.sql.dialect import Capability
from kombu_sqlqueue.sql.results import SQLResultStore

HOUR = timedelta(hours=1)

DELIVERIES = [None, Lease(7, 1), Lease(7, 2), Lease(8, 1)]
STATES = ["SUCCESS", "FAILURE", "REVOKED", "STARTED", "PROGRESS"]


@pytest.fixture
def results(database) -> SQLResultStore:
    return SQLResultStore(database)


@pytest.fixture
def chords(database) -> SQLChordStore:
    return SQLChordStore(database)


def one(results: SQLResultStore, task_id: str):
    found = results.fetch([task_id])
    return (found[0].state, found[0].meta) if found else None


def rows(database, table) -> int:
    return database.statement(lambda tx: tx.scalar(select(func.count()).select_from(table)))


def part(task_id: str, place: int | None = 0, group_id: str = "g", meta: bytes = b"x") -> Part:
    return Part(group_id, task_id, place, meta)


def back(chords: SQLChordStore, *parts: Part):
    """The parts return; the last tally."""
    return [chords.return_part(each, replace=False, expires_in=HOUR) for each in parts][-1]


def at_once(count: int, work):
    """Call `work(i)` in as many threads at the same moment."""
    barrier = threading.Barrier(count)

    def run(i: int):
        barrier.wait(10)
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


# -- results ------------------------------------------------------------------------------


def test_what_is_stored_comes_back(results):
    """Bytes are bytes: NUL, emoji and megabytes."""
    meta = b"\x00\x80" + "\N{SNAKE}".encode() + b"x" * 3_000_000
    assert results.store(NewResult("t", "SUCCESS", meta, task="app.add"))

    [found] = results.fetch(["t"])
    assert (found.task_id, found.state, found.meta) == ("t", "SUCCESS", meta)


def test_an_unknown_task_is_not_found(results):
    """No row, no answer."""
    assert results.fetch(["nobody"]) == []
    assert results.fetch([]) == []


@pytest.mark.parametrize("over", STATES)
def test_the_statement_says_the_same_as_the_rule(results, over):
    """Every write over every stored state, whoever made either: the answer and the row agree with `wins`."""
    for n, (state, by, stored_by) in enumerate(itertools.product(STATES, DELIVERIES, DELIVERIES)):
        task_id = f"t{n}"
        results.store(NewResult(task_id, over, b"old", written_by=stored_by))
        expected = wins(state, by, over=over, stored_by=stored_by)

        assert results.store(NewResult(task_id, state, b"new", written_by=by)) is expected, (state, by, over, stored_by)
        assert one(results, task_id) == ((state, b"new") if expected else (over, b"old"))


def test_of_concurrent_writers_one_success_stays(results):
    """Whoever is told that its SUCCESS was stored is the one that everybody reads."""
    stored = at_once(8, lambda i: results.store(NewResult("t", "SUCCESS", b"%d" % i, written_by=Lease(1, i + 1))))

    assert stored.count(True) == 1
    assert one(results, "t") == ("SUCCESS", b"%d" % stored.index(True))


def test_many_results_are_fetched_at_once(results):
    """In batches, and only the final ones if so asked."""
    for i in range(6):
        results.store(NewResult(f"t{i}", "SUCCESS" if i % 2 else "STARTED", b""))
    ids = [f"t{i}" for i in range(1200)]

    assert {r.task_id for r in results.fetch(ids)} == {f"t{i}" for i in range(6)}
    assert {r.task_id for r in results.fetch(ids, final=True)} == {"t1", "t3", "t5"}


def test_the_version_changes_with_every_write(results, clock):
    """So that a progress is told from what was seen before."""
    results.store(NewResult("t", "PROGRESS", b"1"))
    [before] = results.fetch(["t"])
    clock.advance(timedelta(milliseconds=1))
    results.store(NewResult("t", "PROGRESS", b"2"))
    [after] = results.fetch(["t"])

    assert before.version != after.version


def test_a_forgotten_result_is_gone(results):
    """Forgetting what is not there is no error."""
    results.store(NewResult("t", "SUCCESS", b""))
    results.forget("t")
    results.forget("t")

    assert one(results, "t") is None


def test_groups_are_saved_replaced_and_forgotten(results):
    """By their id."""
    assert results.group("g") is None
    results.save_group("g", b"old", expires_in=None)
    results.save_group("g", b"new", expires_in=HOUR)
    assert results.group("g") == b"new"
    results.forget_group("g")
    assert results.group("g") is None


def test_writes_take_part_in_the_transaction_that_is_open(database, results):
    """Seen inside, and gone with it."""
    with suppress(ZeroDivisionError), database.transaction():
        results.store(NewResult("t", "SUCCESS", b""))
        results.save_group("g", b"", expires_in=None)
        assert one(results, "t") == ("SUCCESS", b"")
        1 / 0  # noqa: B018

    assert one(results, "t") is None
    assert results.group("g") is None


@pytest.mark.requires(Capability.LISTEN_NOTIFY)
def test_a_final_result_is_announced_to_who_waits(database, results):
    """Not a state on the way, nor a write that lost."""
    from kombu_sqlqueue.sql.waiters import SQLWaiters

    SQLWaiters(database).arm("me", ["results"], armed_for=HOUR)
    waker = database.waker()
    try:
        waker.wait(5)
        results.store(NewResult("a", "STARTED", b""))
        results.store(NewResult("b", "SUCCESS", b""))
        results.store(NewResult("b", "FAILURE", b""))
        results.store(NewResult("c", "FAILURE", b""))
        heard = set()
        while len(heard) < 2:
            heard |= waker.wait(5)
    finally:
        waker.close()

    assert heard == {"result:b", "result:c"}


# -- retention ----------------------------------------------------------------------------


def test_what_has_expired_is_pruned_in_bounded_batches(database, results, chords, clock):
    """Results, groups and chords with their parts; what has no end stays."""
    for i in range(5):
        results.store(NewResult(f"t{i}", "SUCCESS", b"", expires_in=HOUR))
    results.store(NewResult("kept", "SUCCESS", b""))
    results.save_group("g", b"", expires_in=HOUR)
    chords.set_size("g", 2, expires_in=HOUR)
    back(chords, part("a"))
    assert results.prune(3) == 0
    clock.advance(2 * HOUR)

    assert results.prune(3) == 3 + 1 + 1
    assert results.prune(3) == 2
    assert results.prune(3) == 0
    assert one(results, "kept") is not None
    tables = database.tables
    assert [rows(database, t) for t in (tables.group_result, tables.chord, tables.chord_part)] == [0, 0, 0]


def test_processes_may_prune_at_once(results, clock):
    """Each row is deleted and counted by one of them."""
    for i in range(40):
        results.store(NewResult(f"t{i}", "SUCCESS", b"", expires_in=HOUR))
    clock.advance(2 * HOUR)

    deleted = sum(at_once(4, lambda i: results.prune(1000)))
    assert deleted + results.prune(1000) == 40


def test_a_finished_chord_is_not_remembered_for_ever(database, results, chords, clock):
    """Even if results are kept for ever: a day is enough to know a late part."""
    chords.set_size("g", 1, expires_in=None)
    chords.return_part(part("a"), replace=False, expires_in=None)
    chords.finish("g")
    chords.return_part(part("late"), replace=False, expires_in=None)
    clock.advance(timedelta(days=2))

    assert results.prune(10) == 1


# -- chords -------------------------------------------------------------------------------


def test_a_chord_is_due_with_its_last_part(chords):
    """And not again once it is finished."""
    chords.set_size("g", 2, expires_in=HOUR)
    assert not back(chords, part("a", 0)).is_due
    assert back(chords, part("b", 1)).is_due
    assert chords.finish("g")
    assert not back(chords, part("b", 1)).is_due
    assert not chords.finish("g")


def test_a_part_is_counted_once_however_often_it_is_told(chords):
    """A redelivery adds nothing, but who repeats the last part sees a due chord again."""
    chords.set_size("g", 2, expires_in=HOUR)
    assert back(chords, part("a", 0), part("a", 0), part("a", 0)).returned == 1
    assert back(chords, part("b", 1), part("b", 1)).is_due


def test_one_task_at_two_places_is_two_parts(chords):
    """A signature frozen once may be used twice."""
    chords.set_size("g", 2, expires_in=HOUR)
    assert back(chords, part("a", 0), part("a", 1)).is_due


def test_parts_may_return_before_the_size_is_known(chords):
    """The header is still being sent."""
    assert not back(chords, part("a", 0), part("b", 1)).is_due
    chords.set_size("g", 3, expires_in=HOUR)
    assert back(chords, part("c", 2)).is_due


def test_added_parts_are_waited_for(chords):
    """Added while the header runs, also before its size is known."""
    chords.add("g")
    chords.set_size("g", 1, expires_in=HOUR)
    chords.add("g")
    assert not back(chords, part("a", 0), part("b", 0)).is_due
    assert back(chords, part("c", 0)).is_due


def test_parts_come_back_in_the_order_of_the_header(chords):
    """Whatever the order in which they returned; those without a place at the end."""
    back(chords, part("z", None, meta=b"z"), part("c", 10, meta=b"c"), part("b", 2, meta=b"b"), part("a", 2, meta=b"a"))
    back(chords, part("other", 0, group_id="other"))

    assert [(p.task_id, p.place, p.meta) for p in chords.parts("g")] == [
        ("a", 2, b"a"),
        ("b", 2, b"b"),
        ("c", 10, b"c"),
        ("z", None, b"z"),
    ]


def test_a_part_told_again_is_changed_only_if_so_asked(chords):
    """As long as the chord is not finished."""
    back(chords, part("a", meta=b"first"))
    chords.return_part(part("a", meta=b"second"), replace=False, expires_in=HOUR)
    assert [p.meta for p in chords.parts("g")] == [b"first"]
    chords.return_part(part("a", meta=b"third"), replace=True, expires_in=HOUR)
    assert [p.meta for p in chords.parts("g")] == [b"third"]


def test_a_finished_chord_keeps_nothing_and_takes_nothing(database, chords):
    """Late parts leave no rows behind."""
    chords.open("g", header=b"shape", expires_in=HOUR)
    assert chords.header("g") == b"shape"
    chords.set_size("g", 1, expires_in=HOUR)
    back(chords, part("a"))
    chords.finish("g")
    back(chords, part("late"))

    assert chords.parts("g") == []
    assert chords.header("g") is None
    assert rows(database, database.tables.chord_part) == 0


@pytest.mark.parametrize("how", ["open", "set_size"])
def test_a_finished_chord_may_start_anew(chords, how):
    """A frozen chord may be applied again; one that still runs is not disturbed by that."""
    chords.set_size("g", 1, expires_in=HOUR)
    back(chords, part("a"))
    chords.finish("g")
    if how == "open":
        chords.open("g", header=None, expires_in=HOUR)
    chords.set_size("g", 2, expires_in=HOUR)
    assert back(chords, part("a", 0)).returned == 1

    chords.open("g", header=None, expires_in=HOUR)
    chords.set_size("g", 2, expires_in=HOUR)
    assert back(chords, part("b", 1)).is_due


def test_of_concurrent_parts_one_sees_the_chord_due(database, chords):
    """And sends the body in the transaction in which it counted: nobody else finishes the chord."""
    chords.set_size("g", 8, expires_in=HOUR)

    def come_back(i: int) -> bool:
        with database.transaction():
            return back(chords, part(f"t{i // 2}", i // 2), part(f"u{i}", i)).is_due and chords.finish("g")

    chords.add("g", 4)
    assert at_once(8, come_back).count(True) == 1


def test_a_transaction_that_breaks_counts_nothing(database, chords):
    """Its part returns again when the task is delivered again."""
    chords.set_size("g", 1, expires_in=HOUR)
    with suppress(ZeroDivisionError), database.transaction():
        back(chords, part("a"))
        chords.finish("g")
        1 / 0  # noqa: B018

    assert back(chords, part("a")).is_due
