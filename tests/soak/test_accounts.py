"""The soak's judge finds what it looks for."""

from __future__ import annotations

from .accounts import EVERYONE, Fault, account
from .journal import Entry


def ran(number: int, lease: str, at: float, *, worker: str = "w", pid: int = 1, ends: bool = True) -> list[Entry]:
    """A run of a second."""
    start = Entry(at, "start", number, pid, lease, worker)
    return [start, Entry(at + 1, "end", number, pid, lease, worker)] if ends else [start]


def sent(*numbers: int) -> list[Entry]:
    return [Entry(0, "sent", number, 9) for number in numbers]


TWICE = [*sent(1), *ran(1, "5:1", 10), *ran(1, "5:2", 20)]


def test_a_task_that_never_ended_is_lost():
    assert account([*sent(1, 2), *ran(1, "5:1", 10), *ran(2, "6:1", 10, ends=False)], []).lost == [2]


def test_a_task_with_two_messages_was_stored_twice():
    assert account([*sent(1), *ran(1, "5:1", 10), *ran(1, "6:1", 10)], []).doubled == [1]


def test_one_lease_is_for_one_start():
    assert account([*sent(1), *ran(1, "5:1", 10), *ran(1, "5:1", 12)], []).shared == ["5:1"]


def test_a_repeat_without_a_fault_is_unexplained():
    assert len(account(TWICE, []).unexplained) == 1
    assert len(account(TWICE, [Fault("kill worker", "other", 10.5)]).unexplained) == 1


def test_a_kill_explains_a_repeat_if_the_ack_may_not_have_been_written():
    assert account(TWICE, [Fault("kill worker", "w", 11.1)]).explained == {"kill worker": 1}
    assert len(account(TWICE, [Fault("kill worker", "w", 15)]).unexplained) == 1


def test_where_a_stopped_process_keeps_all_from_writing_an_ack_may_take_as_long():
    faults = [Fault("stop worker", "other", 10.5), Fault("kill worker", "w", 15)]
    assert account(TWICE, faults, stalls_all=5).explained == {"kill worker": 1}
    assert len(account(TWICE, faults).unexplained) == 1


def test_a_killed_child_explains_what_it_ran_itself():
    assert account(TWICE, [Fault("kill child", "w", 10.5, pid=1)]).explained == {"kill child": 1}
    assert len(account(TWICE, [Fault("kill child", "w", 10.5, pid=2)]).unexplained) == 1


def test_a_restart_explains_what_ran_during_it():
    assert account(TWICE, [Fault("restart", EVERYONE, 9, 12)]).explained == {"restart": 1}
    assert len(account(TWICE, [Fault("restart", EVERYONE, 5, 9)]).unexplained) == 1
