"""The workflows of an app, for its own code: find runs, start many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from celery import Celery

from ..engine.states import RunState
from ..errors import RunNotFoundError
from .handle import Run
from .hooks import install
from .reconciling import Reconciler
from .runtime import Runtime, runtime_of
from .store import Listed, NewRun, Query
from .workflows import Workflow, startable

__all__ = ["Workflows"]

#: How many runs one page of a listing has.
PAGE = 500
#: How many runs are created in one transaction.
AT_ONCE = 500


class Workflows:
    """The workflows of `app`, in the database of its broker or the one that ``workflow_store_url`` names.

    An app whose workers run steps makes one where it is made: it lets the app take part. Nothing is opened before the first use.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        install(app)

    @property
    def _runtime(self) -> Runtime:
        return runtime_of(self._app)

    @property
    def workflows(self) -> Mapping[str, Workflow]:
        """Those that ``@workflow`` has declared in modules imported so far, by name."""
        return MappingProxyType(self._runtime.workflows)

    def get(self, run_id: str) -> Run:
        """The run of that id. Raises RunNotFoundError."""
        if not isinstance(run_id, str) or "\0" in run_id:
            raise RunNotFoundError(f"there is no run {run_id!r}")
        self._runtime.store.get(run_id)
        return Run(self._runtime, run_id)

    def start_many(self, new: Sequence[NewRun]) -> list[Run]:
        """Start what `Starter.new` gave, hundreds in one transaction. A run whose id is there already is left as it is."""
        runtime = startable(self._app)
        for first in range(0, len(new), AT_ONCE):
            runtime.create(new[first : first + AT_ONCE])
        return [Run(runtime, each.id) for each in new]

    def runs(
        self,
        *,
        name: str | None = None,
        status: str | Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        tenant: str | None = None,
        waiting: str | None = None,
        failed_step: str | None = None,
        cursor: int | None = None,
        limit: int = 100,
    ) -> list[Listed]:
        """Runs for which all of this holds, the newest first; pass the last one's `number` as `cursor` for the next page.

        `waiting` is "timer" or "signal". Raises ValueError for a status there is not, and for what is neither of these.
        """
        if waiting not in (None, "timer", "signal"):
            raise ValueError(f"waiting is {waiting!r}, but must be timer or signal")
        if not isinstance(limit, int) or limit < 1 or not isinstance(cursor, int | None):
            raise ValueError(f"limit is {limit!r} and cursor {cursor!r}, but must be a number from 1 on, and a run's number")
        states = [RunState(each) for each in ([status] if isinstance(status, str) else status)]
        query = Query(
            states=states, workflow=name, labels=labels or {}, tenant=tenant, waiting=waiting, failed_step=failed_step
        )
        return self._runtime.store.find(query, before=cursor, limit=limit)

    def all_runs(self, **query: Any) -> Iterator[Listed]:
        """As `runs`, page by page to the end."""
        page = self.runs(limit=PAGE, **query)
        while page:
            yield from page
            page = self.runs(limit=PAGE, cursor=page[-1].number, **query)

    def reconcile(self, *, quiet_for: timedelta = timedelta(seconds=60)) -> list[str]:
        """Look for runs that nothing will move, and move them; what was wrong, in words. Workers do so each minute."""
        return Reconciler(self._runtime).run(quiet_for=quiet_for)

    def prune(self, *, older_than: timedelta, limit: int = 1000) -> int:
        """Delete up to `limit` runs that ended longer ago; the answer is how many. Workers do so by `workflow_retention`."""
        return self._runtime.store.prune(older_than=older_than, limit=limit)
