"""What a running step knows of itself, and what it can do besides returning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from celery import current_task

from kombu_sqlqueue import in_transaction
from kombu_sqlqueue.transactions import apart

from ..errors import NotInStepError, WorkflowError
from .hooks import install
from .identity import StepIdentity, identity_of
from .serializing import as_stored
from .store import StoredRun

__all__ = ["StepContext", "current"]


def current() -> StepContext:
    """The step that this thread runs. Raises NotInStepError outside of one."""
    request = current_task.request if current_task else None
    identity = identity_of(request)
    if identity is None:
        raise NotInStepError("current() is for the task of a workflow's step while it runs")
    known: StepContext | None = getattr(request, "workflow_context", None)
    if known is None:
        known = request.workflow_context = StepContext(identity, request, current_task.app)  # type: ignore[union-attr]
    return known


class StepContext:
    """One attempt of a step."""

    def __init__(self, identity: StepIdentity, request: Any, app: Any) -> None:
        self._identity = identity
        self._request = request
        self._outcomes = install(app)
        self._is_open = False
        self._is_complete = False

    def __repr__(self) -> str:
        return f"<step {self.step} of run {self.run_id}, attempt {self.attempt}>"

    @property
    def run_id(self) -> str:
        return self._identity.run

    @property
    def workflow(self) -> str:
        return self._identity.workflow

    @property
    def step(self) -> str:
        return self._identity.step

    @property
    def index(self) -> int | None:
        """Which item of a map this is about."""
        return self._identity.index

    @property
    def attempt(self) -> int:
        """1 at first; rises with each retry and snooze, starts again when the step is done anew."""
        return self._identity.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the step's retry policy allows."""
        return self._identity.max_attempts

    @property
    def epoch(self) -> int:
        """How often the run was opened: 1, and one more for each retry or rerun of it."""
        return self._identity.epoch

    @property
    def version(self) -> int:
        """That of the run's definition."""
        return self._run.definition.version

    @property
    def labels(self) -> Mapping[str, str]:
        return self._run.labels

    @property
    def tenant(self) -> str | None:
        return self._run.tenant

    def memo(self, name: str, make: Callable[[], Any]) -> Any:
        """The value that `make` gave when this was first called, in whichever attempt: it survives crashes and retries.

        It is stored before this returns; a crash right between `make` and that may call it again. The value has to fit
        into JSON as a result has. Raises TypeError or ValueError if it does not.
        """
        store, key = self._runtime.store, self._identity.key
        known, value = store.memo(self.run_id, key, name)
        return value if known else store.keep_memo(self.run_id, key, name, as_stored(make()))

    @contextmanager
    def transaction(self, session: Any) -> Iterator[Any]:
        """Make rows of the app a part of the step's commit: both are there, or neither.

            with current().transaction(Session) as session:
                session.add(...)
                current().complete({"ok": True})

        `session` is a SQLAlchemy session or connection with a transaction, anything else that `in_transaction` takes, or
        a sessionmaker, whose session is begun here and committed at the end. It must lead to the database of the runs.
        The run is locked from `complete` to the commit: let that be soon.

        Raises WorkflowError if the step was not completed inside, TransactionNotSupportedError for another database.
        """
        if callable(getattr(session, "begin", None)) and not hasattr(session, "execute"):
            with session.begin() as begun, self._completing(begun):
                yield begun
        else:
            with self._completing(session):
                yield session

    def complete(self, result: Any = None) -> None:
        """End the step with this result, in the transaction that is open. What the task returns is ignored then.

        Raises WorkflowError outside of one, the second time, and if the step is not ours any more: it was cancelled, or
        another worker has it, as our lease was lost. That has to roll the transaction back. Raises TypeError or
        ValueError for a result that does not fit into JSON.
        """
        if self._is_complete:
            raise WorkflowError("complete() was called already: a step ends once")
        if not self._is_open:
            raise WorkflowError("complete() is for inside of current().transaction(): elsewhere return the result")
        self._outcomes.completed(self._identity, self._request, result)
        self._is_complete = True

    @contextmanager
    def _completing(self, session: Any) -> Iterator[None]:
        with in_transaction(session):
            self._is_open = True
            try:
                yield
            except BaseException:
                # What was completed is rolled back.
                self._is_complete = False
                raise
            finally:
                self._is_open = False
        if not self._is_complete:
            raise WorkflowError(f"{self!r} was not completed in its transaction: call current().complete(result) in it")

    @property
    def _runtime(self) -> Any:
        return self._outcomes.runtime

    @cached_property
    def _run(self) -> StoredRun:
        with apart():
            found: StoredRun = self._runtime.store.get(self.run_id)
        return found
