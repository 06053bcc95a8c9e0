"""A task for each item of a list. Items are stored in chunks, by a cursor that survives: the first begins at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import finishing, starting, stopping
from .definition import Map, OnItemError
from .draft import Draft
from .events import TimerFired
from .policies import Error
from .records import StepRecord
from .states import StepState

__all__ = ["CHUNK", "EXPAND", "begin", "expand", "halt", "item_over", "resume"]

#: So many items are stored, and sent, by one decision at most.
CHUNK = 500
#: The kind of timer that stores the next chunk.
EXPAND = "expand"


def begin(draft: Draft, record: StepRecord, action: Map) -> None:
    """The list is known: store the first chunk and send what may run.

    Raises TypeError or ValueMissingError if items or arguments are not what they should be, before anything is changed.
    """
    total = len(_items(draft, action))
    draft.resolve([action.call.args, action.call.kwargs])
    if not total:
        finishing.finish(draft, replace(record, total=0), StepState.SUCCEEDED, "empty")
        return
    draft.put(replace(record, state=StepState.MAPPING, total=total), "ready")
    _store_chunk(draft, record.name, action)
    _send_more(draft, record.name, action)


def expand(draft: Draft, event: TimerFired) -> str | None:
    """Store the next chunk."""
    record = draft.step(event.name)
    if record.state is not StepState.MAPPING or record.stopped or record.due_at != event.due_at:
        return "the chunk is stored, or the map is over"
    action = _action(draft, record)
    draft.put(replace(record, expanding=False, due_at=None), EXPAND)
    _store_chunk(draft, record.name, action)
    _send_more(draft, record.name, action)
    return None


def item_over(draft: Draft, item: StepRecord, error: Error | None) -> None:
    """Count an item that is over, and let the next begin."""
    record = draft.step(item.name)
    failed = item.state is StepState.FAILED
    record = draft.put(replace(record, done=record.done + 1, failed_items=record.failed_items + failed), "item")
    if failed and not record.stopped and _action(draft, record).on_error is OnItemError.FAIL:
        first = error or item.error
        record = draft.put(replace(record, error=first and replace(first, permanent=True)), "item")
        halt(draft, record, terminate=False, children=True)
    else:
        _go_on(draft, record.name)


def halt(draft: Draft, record: StepRecord, *, terminate: bool, children: bool) -> None:
    """Begin no more items, take back those that have begun; the map is over when they are."""
    if not record.stopped:
        draft.put(replace(record, stopped=True), "stopped")
    if record.in_flight:
        draft.withdraw(record.name, terminate=terminate)
        for item in draft.items(record.name, {StepState.EXPANDED}):
            stopping.halt_child(draft, item, children=children)
    _go_on(draft, record.name)


def resume(draft: Draft, record: StepRecord, epoch: int) -> None:
    """Do again the items of a map that have not succeeded; those that have stay."""
    action = _action(draft, record)
    again = draft.items(record.name, {StepState.FAILED, StepState.CANCELLED})
    indexes = [item.index for item in again if item.index is not None]
    resumed = replace(
        record,
        state=StepState.MAPPING,
        epoch=epoch,
        sent=record.sent - len(again),
        done=record.done - len(again),
        failed_items=0,
        cursor=min([record.cursor, *indexes]),
        expanding=False,
        stopped=False,
        error=None,
        due_at=None,
    )
    for item in again:
        fresh = StepRecord(name=item.name, index=item.index, epoch=epoch, value=item.value)
        draft.put(fresh, "retry")
    draft.put(resumed, "retry")
    _send_more(draft, record.name, action)


def _go_on(draft: Draft, name: str) -> None:
    record = draft.step(name)
    if record.state is not StepState.MAPPING:
        return
    if record.done == record.total or (record.stopped and not record.in_flight):
        _close(draft, record)
    elif not record.stopped:
        _send_more(draft, name, _action(draft, record))


def _close(draft: Draft, record: StepRecord) -> None:
    if record.failed_items and _action(draft, record).on_error is not OnItemError.SKIP:
        text = f"{record.failed_items} of {record.total} items failed"
        error = record.error or Error(type="ItemsFailed", message=text, permanent=True)
        finishing.fail(draft, record, error, draft.declared(record).on_exhausted, "items")
    elif record.done == record.total:
        finishing.finish(draft, record, StepState.SUCCEEDED, "items")
    else:
        finishing.finish(draft, record, StepState.CANCELLED, "stopped")


def _store_chunk(draft: Draft, name: str, action: Map) -> None:
    record = draft.step(name)
    values = _items(draft, action)[record.inserted : record.inserted + CHUNK]
    draft.add_items(name, record.inserted, values, record.epoch)
    draft.put(replace(record, inserted=record.inserted + len(values)), "stored")


def _send_more(draft: Draft, name: str, action: Map) -> None:
    record = draft.step(name)
    room = CHUNK if action.max_parallel is None else min(CHUNK, action.max_parallel - record.in_flight)
    items = draft.pending_items(name, record.cursor, room) if room > 0 else []
    for item in items:
        starting.send(draft, item, "ready")
    cursor = max((item.index or 0) for item in items) + 1 if items else record.cursor
    record = draft.put(replace(record, sent=record.sent + len(items), cursor=cursor), "items")
    if _wants_chunk(record):
        draft.set_timer(EXPAND, draft.at, name)
        draft.put(replace(record, expanding=True, due_at=draft.at), EXPAND)


def _wants_chunk(record: StepRecord) -> bool:
    waiting = record.inserted - record.sent
    return record.inserted < (record.total or 0) and not record.expanding and waiting <= CHUNK // 2


def _items(draft: Draft, action: Map) -> list[Any]:
    items = draft.resolve(action.items)
    if not isinstance(items, list | tuple):
        raise TypeError(f"a map needs a list, not {type(items).__name__}")
    if action.star and not all(isinstance(item, list | tuple) for item in items):
        raise TypeError("each item of such a map is a list of arguments")
    return list(items)


def _action(draft: Draft, record: StepRecord) -> Map:
    action = draft.declared(record).action
    assert isinstance(action, Map)
    return action
