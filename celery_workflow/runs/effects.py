"""What a decision about a run does in Celery's world: tasks that are sent, taken back and settled, results that are told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from kombu.exceptions import OperationalError

from kombu_sqlqueue.errors import MessageTooBigError, SQLQueueError, StoreUnavailableError
from kombu_sqlqueue.grouping import sent_together
from kombu_sqlqueue.messages import Lease

from ..building.errbacks import exception_of
from ..engine.decision import Decision, Send
from ..engine.definition import Definition
from ..engine.failures import error_of
from ..engine.policies import Error
from ..engine.records import RunRecord
from ..engine.states import RunState
from ..publishing import within
from .identity import StepIdentity

if TYPE_CHECKING:
    from .runtime import Runtime

__all__ = ["AppEffects"]

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A transaction that has failed once is over: nothing in it is tried again.
ONCE = {"retry": False}


class AppEffects:
    """Implements `Effects`. Make one for each call of the store, and call `committed` after it."""

    def __init__(
        self,
        runtime: Runtime,
        producer: Any,
        *,
        lease: Lease | None = None,
        record: Callable[[Decision], object] | None = None,
    ) -> None:
        """`lease` is that of the message whose outcome is given; `record` tells the result backend of that outcome."""
        self._runtime = runtime
        self._producer = producer
        self._lease = lease
        self._record = record
        self._later: list[Callable[[], object]] = []

    def committed(self) -> None:
        """Do what had to wait for the commit: tell other servers."""
        later, self._later = self._later, []
        for do in later:
            try:
                do()
            except Exception:
                logger.exception("a run has changed, but telling of it failed")

    # -- called by the store --------------------------------------------------------------

    def settle(self, tx: Any) -> bool:
        self._later.clear()  # If the transaction is repeated.
        with as_it_was():
            return self._lease is None or self._runtime.messages.within(tx).settle(self._lease)

    def decided(self, tx: Any, decision: Decision) -> None:
        if self._record is not None:
            record = self._record
            self._tell(tx, lambda: record(decision))

    def send(self, tx: Any, run: RunRecord, definition: Definition, sends: Sequence[Send]) -> Sequence[tuple[Send, Error]]:
        with as_it_was():
            return self._sent(tx, run, definition, sends)

    def _sent(self, tx: Any, run: RunRecord, definition: Definition, sends: Sequence[Send]) -> Sequence[tuple[Send, Error]]:
        refused = []
        connection = self._producer and self._producer.connection
        with within(self._runtime.home, tx, connection), sent_together(self._runtime.app, ONCE):
            for send in sends:
                try:
                    self._send(run, definition, send)
                except Exception as error:
                    if isinstance(error, SQLQueueError | OperationalError) and not isinstance(error, MessageTooBigError):
                        raise
                    # Whatever else it is, it is that of the arguments or options.
                    refused.append((send, error_of(error)))
        return refused

    def take_back(self, tx: Any, run: RunRecord, task_ids: Collection[str], *, terminate: bool) -> Collection[str]:
        with as_it_was():
            gone = self._runtime.messages.within(tx).withdraw(run.id, task_ids) if self._runtime.home.is_broker else set()
        left = sorted(set(task_ids) - gone)
        if left:
            self._later.append(lambda: self._runtime.app.control.revoke(left, terminate=terminate))
        return gone

    def ended(self, tx: Any, run: RunRecord, definition: Definition, result: Any) -> None:
        self._tell(tx, lambda: self._store_result(run, definition, result))

    # -- small things ---------------------------------------------------------------------

    def _send(self, run: RunRecord, definition: Definition, send: Send) -> None:
        app = self._runtime.app
        task = app.tasks.get(send.task)
        given = {**(task._get_exec_options() if task is not None else {}), **send.options}
        identity = StepIdentity.of(run.id, definition, send)
        headers = {**(given.pop("headers", None) or {}), **identity.headers()}
        # Not the task's own `apply_async`: that refuses wrong arguments, which here nobody could be told of.
        app.send_task(
            send.task,
            list(send.args),
            send.kwargs,
            eta=None if send.due_at is None else _EPOCH + timedelta(microseconds=send.due_at),
            task_id=send.task_id,
            producer=self._producer,
            headers=headers,
            root_id=run.root_id or run.id,
            parent_id=run.id,
            retries=send.retries,
            task_type=task,
            **{"ignore_result": getattr(task, "ignore_result", False), **given, **ONCE},
        )

    def _tell(self, tx: Any, tell: Callable[[], object]) -> None:
        """Now, if the result backend takes part in the transaction; otherwise after it."""
        if self._runtime.backend_is_here:
            with as_it_was(), self._runtime.home.database.joined(tx):
                tell()
        else:
            self._later.append(tell)

    def _store_result(self, run: RunRecord, definition: Definition, result: Any) -> None:
        backend = self._runtime.app.backend
        request = Context(id=run.id, task=definition.name, root_id=run.root_id or run.id)
        if run.epoch > 1:
            # A result that succeeded is never overwritten.
            self._runtime.forget_result(run.id)
        if run.state is RunState.SUCCEEDED:
            backend.store_result(run.id, result, states.SUCCESS, request=request)
        elif run.state is RunState.FAILED:
            error = run.error or Error(type="RunFailedError", message=run.reason)
            exception = exception_of(error.as_dict())
            backend.store_result(run.id, exception, states.FAILURE, traceback=error.traceback, request=request)
        else:
            backend.store_result(run.id, TaskRevokedError(run.reason or str(run.state)), states.REVOKED, request=request)


@contextmanager
def as_it_was() -> Iterator[None]:
    """Raise what the database has said, and not what Kombu makes of it: the whole transaction is to be tried again."""
    try:
        yield
    except (OperationalError, StoreUnavailableError) as error:
        cause: BaseException = error
        while isinstance(cause, OperationalError | StoreUnavailableError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise cause from None
