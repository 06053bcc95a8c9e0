"""A locked run as the engine sees it: read when asked for, with what is decided but not yet written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select

from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.direct import Direct

from ..engine.decision import Decision
from ..engine.definition import Definition
from ..engine.records import Key, RunRecord, SignalRecord, StepRecord
from ..engine.states import StepState
from ..engine.values import RUN
from .outputs import outputs_of
from .remembered import Remembered
from .run_rows import STEP_COLUMNS, signal_of, step_of, stored_index
from .run_schema import NO_INDEX, RunTables
from .run_text import Values
from .run_writing import Unsaved

__all__ = ["Inherited", "LockedRun", "RunReads"]

#: About how many rows are read before they are asked for: all that the outcome of a step usually wants.
AHEAD = 32
#: How many results a process remembers, and how many characters of them.
RESULTS = 2_000
CHARACTERS = 50_000_000


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a run leaves to its children."""

    labels: Mapping[str, str]
    tenant: str | None
    priority: int | None


class RunReads:
    """What is asked about a locked run."""

    def __init__(self, database: Database, tables: RunTables, values: Values) -> None:
        self._database = database
        self.values = values
        self.remembered: Remembered[tuple[int, int, str], Any] = Remembered(most=RESULTS, characters=CHARACTERS)
        s, given = tables.step.c, database.dialect.given
        rows = select(*(s[name] for name in STEP_COLUMNS)).where(s.run == bindparam("of_run"))
        items = rows.where(s.name == bindparam("of_name"))
        below = s.idx < bindparam("inserted")
        self.steps = _Read(database, rows.where(given(s.name, "names"), s.idx == NO_INDEX))
        self.own_items = _Read(database, items.where(given(s.idx, "indexes")))
        self.items = _Read(database, items.where(s.idx > NO_INDEX, below, given(s.state, "states")).order_by(s.idx))
        pending = items.where(s.idx >= bindparam("first"), below, s.state == StepState.PENDING.value).order_by(s.idx)
        self.pending = _Read(database, pending.limit(bindparam("most")))
        outputs = select(s.name, s.idx, s.state, s.total, s.result).where(s.run == bindparam("of_run"))
        self.outputs = _Read(database, outputs.where(given(s.name, "names")).order_by(s.name, s.idx))
        run = tables.run.c
        self.result = _Read(database, select(run.result).where(run.number == bindparam("of_run")))
        signals = select(tables.signal).where(tables.signal.c.run == bindparam("of_run"))
        by_name = signals.where(tables.signal.c.name == bindparam("of_name"), tables.signal.c.taken_by.is_(None))
        self.open_signals = _Read(database, by_name.order_by(tables.signal.c.place))
        self.signal = _Read(database, signals.where(tables.signal.c.id == bindparam("of_id")))

    def packed(self, name: str, values: Collection[Any]) -> dict[str, Any]:
        return self._database.dialect.packed(name, 1, [(value,) for value in values])

    def may_remember(self, tx: Connection) -> bool:
        """Whether what the transaction reads before it writes has been committed."""
        return self._database.is_own(tx) and not self._database.is_joined


class LockedRun:
    """The `RunView` of a run that this transaction has locked."""

    def __init__(
        self,
        tx: Connection,
        number: int,
        run: RunRecord,
        definition: Definition,
        inherited: Inherited,
        reads: RunReads,
        unsaved: Unsaved,
    ) -> None:
        self.number = number
        self.run = run
        self.definition = definition
        self.inherited = inherited
        self._tx = tx
        self._reads = reads
        self._unsaved = unsaved
        self._rows: dict[Key, StepRecord | None] = {}
        self._outputs: dict[str, Any] = {}
        self._remembers = reads.may_remember(tx)

    def take(self, decision: Decision) -> None:
        """The run as the decision has it. It is written when something is read, or at the end."""
        if decision.run is not None:
            self.run = decision.run
        self._rows.update({record.key: record for record in decision.steps})
        for key in decision.results:
            self._outputs.pop(key.name, None)
        self._unsaved.add(self.number, self.run, decision)
        # From here on what is read may be rolled back.
        self._remembers = False

    def steps(self, keys: Iterable[Key]) -> Mapping[Key, StepRecord]:
        wanted = list(keys)
        missing = [key for key in wanted if key not in self._rows]
        if plain := [key.name for key in missing if key.index is None]:
            self._read_steps(plain)
        of_items: dict[str, list[int]] = {}
        for key in missing:
            if key.index is not None:
                of_items.setdefault(key.name, []).append(key.index)
        for name, indexes in of_items.items():
            self._read_items(name, indexes)
        return {key: row for key in wanted if (row := self._rows.get(key)) is not None}

    def items(self, name: str, states: Collection[StepState]) -> Sequence[StepRecord]:
        packed = self._reads.packed("states", [state.value for state in states])
        return self._stored_items(self._reads.items, name, packed)

    def pending_items(self, name: str, start: int, limit: int) -> Sequence[StepRecord]:
        return self._stored_items(self._reads.pending, name, {"first": start, "most": limit})

    def results(self, names: Iterable[str]) -> Mapping[str, Any]:
        wanted = list(names)
        missing = [name for name in wanted if name != RUN and not self._recall(name)]
        if missing:
            self._read_results(missing)
        if RUN in wanted and RUN not in self._outputs:
            [row] = self._asked(self._reads.result, {})
            self._outputs[RUN] = self._reads.values.loads_given(row.result)
        return {name: self._outputs[name] for name in wanted if name in self._outputs}

    def signals(self, name: str) -> Sequence[SignalRecord]:
        rows = self._asked(self._reads.open_signals, {"of_name": name})
        return [signal_of(row._asdict(), self._reads.values) for row in rows]

    def has_signal(self, signal_id: str) -> bool:
        return bool(self._asked(self._reads.signal, {"of_id": signal_id}))

    def _asked(self, read: _Read, parameters: Mapping[str, Any]) -> Sequence[Any]:
        self._unsaved.save(self._tx)
        return read(self._tx, {"of_run": self.number, **parameters})

    def _read_steps(self, names: Sequence[str]) -> None:
        ahead = [name for name in self._ahead(names) if Key(name) not in self._rows]
        asked = dict.fromkeys([*names, *ahead])
        self._rows.update({Key(name): None for name in asked})
        self._keep(self._asked(self._reads.steps, self._reads.packed("names", asked)))

    def _ahead(self, names: Sequence[str]) -> list[str]:
        """What is wanted next: the steps that follow, and those whose results they use."""
        followers = self.definition.followers
        found: dict[str, None] = {}
        for follower in (follower for name in names for follower in followers.get(name, ())):
            if len(found) >= AHEAD:
                break
            needs = self.definition.by_name[follower].needs
            found.update(dict.fromkeys([follower, *(needs if len(needs) < AHEAD else ())]))
        return list(found)

    def _read_items(self, name: str, indexes: Sequence[int]) -> None:
        """The items, and the map that they are of."""
        asked = {Key(name, index) for index in indexes} | {Key(name)} - self._rows.keys()
        self._rows.update(dict.fromkeys(asked))
        stored = [stored_index(key.index) for key in asked]
        self._keep(self._asked(self._reads.own_items, {"of_name": name, **self._reads.packed("indexes", stored)}))

    def _stored_items(self, read: _Read, name: str, parameters: Mapping[str, Any]) -> list[StepRecord]:
        """Rows of items that the map has; after a rerun there may be some of a longer list."""
        of_map = self.steps([Key(name)]).get(Key(name))
        inserted = 0 if of_map is None else of_map.inserted
        return self._keep(self._asked(read, {"of_name": name, "inserted": inserted, **parameters})) if inserted else []

    def _keep(self, rows: Sequence[Any]) -> list[StepRecord]:
        found = [step_of(row._asdict(), self._reads.values) for row in rows]
        self._rows.update({record.key: record for record in found})
        return found

    def _recall(self, name: str) -> bool:
        """Whether the result is known."""
        if name in self._outputs:
            return True
        known = self._reads.remembered.get((self.number, self.run.epoch, name)) if self._remembers else None
        if known is not None:
            self._outputs[name] = known[0]
        return known is not None

    def _read_results(self, names: Sequence[str]) -> None:
        rows = self._asked(self._reads.outputs, self._reads.packed("names", names))
        found = outputs_of(rows, self._reads.values)
        self._outputs |= found
        sizes: Counter[str] = Counter()
        for row in rows:
            sizes[row.name] += len(row.result or "")
        for name, value in found.items():
            record = self._rows.get(Key(name))
            if self._remembers and record is not None and record.state.is_over:
                self._reads.remembered.put((self.number, self.run.epoch, name), (value,), sizes[name])


class _Read:
    """A query about a run that is locked.

    A caller's transaction may look at the database as it was before the lock was ours: its rows are locked, too, and
    thereby read as they are.
    """

    def __init__(self, database: Database, query: Select[Any]) -> None:
        self._is_own = database.is_own
        self._own = Direct(database, query)
        self._guest = query.with_for_update()

    def __call__(self, tx: Connection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        return self._own(tx, parameters) if self._is_own(tx) else tx.execute(self._guest, parameters).all()
