"""Looking at runs without locking them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, literal_column, select

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct

from ..engine.journal import Entry
from ..engine.records import Key, SignalRecord, StepRecord
from ..engine.states import StepState
from ..engine.values import RUN
from ..errors import RunNotFoundError
from ..runs.store import Listed, Query, Serializer, StoredRun
from .definitions import Definitions
from .outputs import outputs_of
from .run_finder import RunFinder, listed_of
from .run_rows import RUN_COLUMNS, STEP_COLUMNS, entry_of, key_of, run_of, signal_of, step_of, stored_index
from .run_schema import NO_INDEX
from .run_text import Values
from .schema import Tables

__all__ = ["RunReader"]

T = TypeVar("T")

#: How many steps one query asks for.
NAMES = 500


class RunReader:
    """What a `RunStore` tells of runs."""

    def __init__(self, database: Database, tables: Tables, serializer: Serializer) -> None:
        self._database = database
        self._tables = tables.runs
        self._values = Values(serializer)
        self._definitions = Definitions(database, self._tables, self._values)
        run, step = self._tables.run.c, self._tables.step.c
        self._id = run.id == bindparam("of_id")
        told = [run[name] for name in (*RUN_COLUMNS, "number", "definition", "inputs", "labels", "tenant", "priority")]
        self._run = select(*told).where(self._id)
        self._get = Direct(database, self._run)
        self._ending = Direct(database, select(run.result).where(self._id))
        columns = [step[name] for name in STEP_COLUMNS]
        self._rows = select(*columns)
        # A run without such rows has one row that is all NULL.
        with_steps = self._tables.run.outerjoin(
            self._tables.step, and_(step.run == run.number, step.idx == literal_column(str(NO_INDEX)))
        )
        self._steps = select(*columns).select_from(with_steps).where(self._id)
        self._progress = _progress(self)
        self._finder = RunFinder(database, self._tables)

    # -- one run ------------------------------------------------------------------------------

    def get(self, run_id: str) -> StoredRun:
        def read(tx: Connection) -> StoredRun:
            rows = self._get(tx, {"of_id": run_id})
            return self._stored(tx, run_id, rows[0]._asdict() if rows else None)

        return self._look(read)

    def result(self, run_id: str, key: Key) -> Any:
        if key.index is not None:
            return self._look(lambda tx: self._item_result(tx, run_id, key))
        if key.name == RUN:
            rows = self._look(lambda tx: self._ending(tx, {"of_id": run_id}))
            if not rows:
                raise _unknown(run_id)
            return self._values.loads_given(rows[0].result)
        return self.results(run_id, [key.name]).get(key.name)

    def results(self, run_id: str, names: Collection[str]) -> Mapping[str, Any]:
        return self._look(lambda tx: self._results(tx, run_id, names))

    def steps(self, run_id: str) -> list[StepRecord]:
        rows = self._look(lambda tx: tx.execute(self._steps, {"of_id": run_id}).mappings().all())
        if not rows:
            raise _unknown(run_id)
        return [step_of(row, self._values) for row in rows if row["name"] is not None]

    def items(self, run_id: str, name: str, *, after: int = -1, limit: int = 1000) -> list[StepRecord]:
        s, of_map = self._tables.step.c, self._tables.step.alias()
        inserted = select(of_map.c.inserted).where(
            of_map.c.run == s.run, of_map.c.name == s.name, of_map.c.idx == literal_column(str(NO_INDEX))
        )
        query = self._rows.where(
            s.run == self._number(run_id), s.name == name, s.idx > max(after, NO_INDEX), s.idx < inserted.scalar_subquery()
        )
        return self._listed(query.order_by(s.idx).limit(limit), step_of)

    def signals(self, run_id: str) -> list[SignalRecord]:
        s = self._tables.signal
        return self._listed(select(s).where(s.c.run == self._number(run_id)).order_by(s.c.place), signal_of)

    def journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[tuple[int, Entry]]:
        j = self._tables.journal
        query = select(j).where(j.c.run == self._number(run_id), j.c.id > after).order_by(j.c.id).limit(limit)
        return self._listed(query, lambda row, values: (row["id"], entry_of(row, values)))

    def errors(self, run_id: str, *, newest: int = 20) -> list[Entry]:
        j = self._tables.journal
        query = select(j).where(j.c.run == self._number(run_id), j.c.error.is_not(None))
        return self._listed(query.order_by(j.c.id.desc()).limit(newest), entry_of)[::-1]

    def progress(self, run_id: str) -> Mapping[str, int]:
        return self._look(lambda tx: self._counted(tx, run_id))

    def children(self, run_id: str) -> list[str]:
        run = self._tables.run.c
        query = select(run.id).where(run.parent_run == run_id).order_by(run.number)
        return self._look(lambda tx: list(tx.scalars(query)))

    def memo(self, run_id: str, key: Key, name: str) -> tuple[bool, Any]:
        found = self._look(lambda tx: tx.execute(self._memo(self._number(run_id), key, name)).first())
        return (False, None) if found is None else (True, self._values.loads(found.value))

    def whole(self, run_id: str) -> tuple[StoredRun, Mapping[Key, StepRecord]]:
        step = self._tables.step.c

        def read(tx: Connection) -> tuple[StoredRun, Mapping[Key, StepRecord]]:
            # Who writes its rows has the run locked.
            row = tx.execute(self._run.with_for_update(read=True), {"of_id": run_id}).mappings().first()
            stored = self._stored(tx, run_id, row)
            rows = tx.execute(self._rows.where(step.run == row["number"])).mappings() if row else ()
            return stored, {key_of(each): step_of(each, self._values) for each in rows}

        return self._database.run(read, joins=True)

    # -- many ---------------------------------------------------------------------------------

    def find(self, query: Query, *, before: int | None = None, limit: int = 100) -> list[Listed]:
        return self._listed(self._finder.find(query, before).limit(limit), listed_of)

    def stalled(self, *, quiet_for: timedelta, limit: int, after: int = 0) -> list[tuple[int, str]]:
        query = self._finder.stalled(quiet_for, after).limit(limit)
        return self._listed(query, lambda row, values: (row["number"], row["id"]))

    # -- within -------------------------------------------------------------------------------

    def _look(self, read: Callable[[Connection], T]) -> T:
        """Read by statements that stand alone, or in the transaction that is open."""
        if self._database.in_transaction:
            return self._database.run(read, joins=True)
        return self._database.statement(read)

    def _listed(self, query: Select[Any], of: Callable[[Any, Values], T]) -> list[T]:
        rows = self._look(lambda tx: tx.execute(query).mappings().all())
        return [of(row, self._values) for row in rows]

    def _number(self, run_id: str) -> Any:
        run = self._tables.run.c
        return select(run.number).where(run.id == run_id).scalar_subquery()

    def _stored(self, tx: Connection, run_id: str, row: Mapping[Any, Any] | None) -> StoredRun:
        if row is None:
            raise _unknown(run_id)
        return StoredRun(
            record=run_of(row, self._values),
            definition=self._definitions.get(tx, row["definition"]),
            inputs=self._values.loads_given(row["inputs"]) or {},
            labels=self._values.loads_given(row["labels"]) or {},
            tenant=row["tenant"],
            priority=row["priority"],
        )

    def _results(self, tx: Connection, run_id: str, names: Iterable[str]) -> Mapping[str, Any]:
        run, s = self._tables.run.c, self._tables.step.c
        row = tx.execute(select(run.number, run.result).where(self._id), {"of_id": run_id}).first()
        if row is None:
            raise _unknown(run_id)
        asked = sorted(set(names))
        found = {RUN: self._values.loads(row.result)} if RUN in asked and row.result is not None else {}
        columns = select(s.name, s.idx, s.state, s.total, s.result)
        for start in range(0, len(asked), NAMES):
            some = asked[start : start + NAMES]
            query = columns.where(s.run == row.number, s.name.in_(some)).order_by(s.name, s.idx)
            found |= outputs_of(tx.execute(query), self._values)
        return found

    def _item_result(self, tx: Connection, run_id: str, key: Key) -> Any:
        s = self._tables.step.c
        number = tx.scalar(select(self._tables.run.c.number).where(self._id), {"of_id": run_id})
        if number is None:
            raise _unknown(run_id)
        item = select(s.result).where(s.run == number, s.name == key.name, s.idx == stored_index(key.index))
        return self._values.loads_given(tx.scalar(item.where(s.state == StepState.SUCCEEDED.value)))

    def _counted(self, tx: Connection, run_id: str) -> Mapping[str, int]:
        rows = tx.execute(self._progress, {"of_id": run_id}).all()
        if not rows:
            raise _unknown(run_id)
        counts: dict[str, int] = {}
        untouched = {step.name for step in self._definitions.get(tx, rows[0].definition).main}
        for row in rows:
            untouched.discard(row.step)
            if row.state is not None and row.total is None:
                counts[row.state] = counts.get(row.state, 0) + row.times
            elif row.state is not None and row.total > row.inserted:
                counts[StepState.PENDING.value] = counts.get(StepState.PENDING.value, 0) + row.total - row.inserted
        if untouched:
            counts[StepState.PENDING.value] = counts.get(StepState.PENDING.value, 0) + len(untouched)
        return counts

    def _memo(self, number: Any, key: Key, name: str) -> Select[Any]:
        m = self._tables.memo.c
        return select(m.value).where(m.run == number, m.step == key.name, m.idx == stored_index(key.index), m.name == name)


def _progress(reader: RunReader) -> Select[Any]:
    """The states of a run's steps, each by name, and how many items of maps are in each state."""
    run, s = reader._tables.run.c, reader._tables.step.c
    no_index: ColumnElement[int] = literal_column(str(NO_INDEX))
    of_map = reader._tables.step.alias("of_map")
    joined = reader._tables.run.outerjoin(reader._tables.step, s.run == run.number).outerjoin(
        of_map, and_(of_map.c.run == s.run, of_map.c.name == s.name, of_map.c.idx == no_index)
    )
    counted = select(run.definition, s.name.label("step"), s.state, func.count().label("times"))
    return (
        counted.add_columns(func.max(s.total).label("total"), func.max(s.inserted).label("inserted"))
        .select_from(joined)
        .where(reader._id, s.idx.is_(None) | (s.idx == no_index) | (s.idx < of_map.c.inserted))
        .group_by(run.definition, s.name, s.idx == no_index, s.state)
    )


def _unknown(run_id: str) -> RunNotFoundError:
    return RunNotFoundError(f"there is no run {run_id}")
