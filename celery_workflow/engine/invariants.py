"""What is always true of a run's rows. A doctor asks it of stored runs, the tests after every event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .definition import Definition, Role
from .records import Key, RunRecord, StepRecord
from .states import IN_FLIGHT, RunState, StepState

__all__ = ["faults"]

#: States that something outside brings to an end: an outcome, a timer, a signal, another run.
_MOVING = IN_FLIGHT | {StepState.SLEEPING, StepState.AWAITING, StepState.EXPANDED}


def faults(definition: Definition, run: RunRecord, rows: Mapping[Key, StepRecord]) -> list[str]:
    """What is wrong with a run, in words; nothing if all is well."""
    mains = {step.name: rows.get(Key(step.name)) for step in definition.main}
    return [*_run_faults(definition, run, mains), *_map_faults(rows), *_stalled(definition, run, rows)]


def _run_faults(definition: Definition, run: RunRecord, mains: Mapping[str, StepRecord | None]) -> Iterator[str]:
    if run.started_at is None:
        return
    unfinished = sum(record is None or not record.state.is_over for record in mains.values())
    bad = sum(record is not None and record.state.is_bad for record in mains.values())
    if (run.unfinished, run.bad) != (unfinished, bad):
        yield f"the run counts {run.unfinished} unfinished and {run.bad} bad steps, there are {unfinished} and {bad}"
    if run.state.is_over and unfinished:
        yield f"the run is over, {unfinished} steps are not"
    if run.state is RunState.RUNNING:
        yield from _waiting_faults(definition, mains)


def _waiting_faults(definition: Definition, mains: Mapping[str, StepRecord | None]) -> Iterator[str]:
    for name, record in mains.items():
        needs = [mains[need] for need in definition.by_name[name].needs]
        open_needs = sum(need is None or not need.state.is_over for need in needs)
        if record is None or not record.state.is_over:
            yield from _open_step_faults(name, record, open_needs)
        elif open_needs and not any(need and need.epoch > record.epoch for need in needs):
            # Unless the need is done again alone.
            yield f"step {name} is {record.state} before what it needs is over"


def _open_step_faults(name: str, record: StepRecord | None, open_needs: int) -> Iterator[str]:
    if record is not None and record.waits_for != open_needs:
        yield f"step {name} counts {record.waits_for} open needs, there are {open_needs}"
    is_pending = record is None or record.state is StepState.PENDING
    if record is not None and not is_pending and open_needs:
        yield f"step {name} is {record.state} before what it needs is over"
    if is_pending and not open_needs:
        yield f"step {name} is ready and has not begun"


def _map_faults(rows: Mapping[Key, StepRecord]) -> Iterator[str]:
    for record in rows.values():
        if record.total is None:
            continue
        items = [rows[Key(record.name, index)] for index in range(record.inserted)]
        done = sum(item.state.is_over for item in items)
        sent = sum(item.state is not StepState.PENDING for item in items)
        if (record.done, record.sent) != (done, sent):
            yield f"map {record.name} counts {record.done} done of {record.sent} sent, there are {done} of {sent}"
        if record.state is StepState.MAPPING and not record.in_flight and not record.expanding:
            yield f"map {record.name} has nothing in flight and is not over"


def _stalled(definition: Definition, run: RunRecord, rows: Mapping[Key, StepRecord]) -> Iterator[str]:
    """An unfinished run has something that will move it."""
    if run.state.is_over or run.state is RunState.PENDING:
        return
    role = Role.COMPENSATION if run.state is RunState.COMPENSATING else Role.MAIN
    moving = _MOVING | {StepState.MAPPING}
    mine = (record for record in rows.values() if definition.by_name[record.name].role is role)
    if not any(record.state in moving for record in mine):
        yield f"the run is {run.state} and nothing will move it"
