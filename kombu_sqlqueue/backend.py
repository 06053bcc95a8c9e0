"""Celery's result backend: translation between its calls and the result store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any, TypeVar

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin
from celery.backends.base import Backend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import result_from_tuple
from kombu.exceptions import OperationalError
from kombu.utils.encoding import bytes_to_str, ensure_bytes

from .chords import Chords
from .errors import ConfigurationError, StoreUnavailableError
from .messages import Lease
from .options import DatabaseOptions, Options, hide_password, normalise
from .patience import OUTCOME_PATIENCE, patiently
from .process import PRUNE_BATCH, PRUNE_EVERY, Process, process_for
from .result_store import ResultStore
from .results import NewResult
from .transactions import current
from .waiting import ResultConsumer

__all__ = ["SQLBackend"]

T = TypeVar("T")

#: For how many seconds a write is tried again while the database is away, if it is not of a task that runs here.
PATIENCE = 30.0
#: What is known of a task that has not ended is kept this long at least: it may still be waiting or running.
UNFINISHED_FOR = timedelta(days=30)


class SQLBackend(Chords, AsyncBackendMixin, Backend):
    """Results, groups and chords as rows of a database.

    One object serves all threads of a process, and its children after a fork. Making one touches
    nothing; the first use checks the tables. What a task reports is committed before the call
    returns; while the database is away it is tried again for an hour, other writes for 30 s, then kombu's
    OperationalError is raised. A payload is decoded only by a serializer that the app accepts.
    """

    supports_autoexpire = True
    supports_native_join = True
    supports_result_compression = True
    supports_failure_expires = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app, url=url, expires_type=float, **kwargs)
        self.thread_safe = True
        self.broker_is_here = _is_broker(app.conf, url or "")
        self._options = _options(app.conf, url or "", self.broker_is_here)
        failure_expires = app.conf.get("result_failure_expires")
        self.failure_expires = self.expires if failure_expires is None else self.prepare_expires(failure_expires, type=float)
        self._prepared: Process | None = None
        self._prune_at = time.monotonic() + PRUNE_EVERY
        self.result_consumer = ResultConsumer(self, app, self.accept, self._pending_results, self._pending_messages)

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url, "expires": self.expires})

    def as_uri(self, include_password: bool = False) -> str:
        """The URL, its password hidden unless asked for."""
        return f"sqlqueue+{self.url if include_password else hide_password(self.url)}"

    @property
    def process(self) -> Process:
        """What this process shares. The first use of each process checks the tables.

        Raises SchemaError if they are missing or old; it names the command to run.
        """
        process = process_for(self._options.database)
        if process is not self._prepared:
            process.prepare()
            self._prepared = process
        return process

    @property
    def database_options(self) -> DatabaseOptions:
        """Where the results are."""
        return self._options.database

    @property
    def results(self) -> ResultStore:
        return self.process.results

    @property
    def in_transaction(self) -> bool:
        """Whether what is written now takes part in a transaction that someone else will end."""
        return process_for(self._options.database).database.in_transaction

    @property
    def writes_within(self) -> bool:
        """Whether we are in the middle of a transaction of our own, such as that of a chord."""
        return process_for(self._options.database).database.is_joined

    @property
    def unsent(self) -> frozenset[str]:
        """The ids of the tasks that were sent in a transaction which this thread or task has still open."""
        loan = current() or process_for(self._options.database).database.loan
        return frozenset() if loan is None else loan.unsent

    # -- tasks ----------------------------------------------------------------------------

    def _store_result(
        self, task_id: Any, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = task_id = bytes_to_str(task_id)
        new = NewResult(
            task_id,
            state,
            ensure_bytes(self.encode(meta)),
            task=getattr(request, "task", None),
            written_by=_delivery(task_id, request),
            expires_in=self._kept_for(state),
        )
        if not self.held_back(new, request):
            self.patiently(lambda: self.results.store(new))
        return result

    def _kept_for(self, state: str) -> timedelta | None:
        kept_for = _duration(self.failure_expires if state == states.FAILURE else self.expires)
        return kept_for if kept_for is None or state in states.READY_STATES else max(kept_for, UNFINISHED_FOR)

    def _get_task_meta_for(self, task_id: Any) -> dict[str, Any]:
        found = self._reading(lambda: self.results.fetch([bytes_to_str(task_id)]))
        if not found:
            return {"status": states.PENDING, "result": None}
        meta: dict[str, Any] = self.decode_result(found[0].meta)
        return meta

    def task_result_exists(self, task_id: Any) -> bool:
        """Whether anything is known of the task."""
        return bool(self._reading(lambda: self.results.fetch([bytes_to_str(task_id)])))

    def get_many(
        self,
        task_ids: Iterable[Any],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Any], object] | None = None,
        on_interval: Callable[[], object] | None = None,
        max_iterations: int | None = None,
        READY_STATES: frozenset[str] = states.READY_STATES,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each task with its result as they end, one query for all in `interval` seconds.

        Raises celery's TimeoutError after `timeout` seconds.
        """
        waited_for = {bytes_to_str(task_id) for task_id in task_ids}
        until = None if timeout is None else time.monotonic() + timeout
        looks = 0
        while waited_for:
            for found in self._reading(lambda: self.results.fetch(waited_for)):
                if found.state in READY_STATES:
                    waited_for.discard(found.task_id)
                    meta = self.decode_result(found.meta)
                    if on_message is not None:
                        on_message(meta)
                    yield found.task_id, meta
            looks += 1
            if not waited_for or looks == max_iterations:
                return
            if on_interval is not None:
                on_interval()
            pause = interval or 0.5
            if until is not None:
                pause = min(pause, until - time.monotonic())
                if pause <= 0:
                    raise CeleryTimeoutError(f"Operation timed out ({timeout})")
            time.sleep(pause)

    def _forget(self, task_id: Any) -> None:
        self.patiently(lambda: self.results.forget(bytes_to_str(task_id)))

    # -- groups ---------------------------------------------------------------------------

    def _save_group(self, group_id: str, result: Any) -> Any:
        meta = ensure_bytes(self.encode({"result": result.as_tuple()}))
        self.patiently(lambda: self.results.save_group(group_id, meta, expires_in=_duration(self.expires)))
        return result

    def _restore_group(self, group_id: str) -> dict[str, Any] | None:
        saved = self._reading(lambda: self.results.group(group_id))
        if saved is None:
            return None
        meta: dict[str, Any] = self.decode(saved)
        return {**meta, "result": result_from_tuple(meta["result"], self.app)}

    def _delete_group(self, group_id: str) -> None:
        self.patiently(lambda: self.results.forget_group(group_id))

    # -- retention ------------------------------------------------------------------------

    def cleanup(self) -> None:
        """Delete all that has expired, in batches."""
        while self.results.prune(PRUNE_BATCH) >= PRUNE_BATCH:
            pass

    def process_cleanup(self) -> None:
        """After each task: where no broker of ours does it, delete a batch of what has expired now and then."""
        if time.monotonic() < self._prune_at:
            return
        self._prune_at = time.monotonic() + PRUNE_EVERY
        if not self.shares_broker:
            self.results.prune(PRUNE_BATCH)

    # -- a database that is away ----------------------------------------------------------

    def patiently(self, write: Callable[[], T]) -> T:
        """Do `write`, which may be repeated, as long as it takes the database to come back, up to 30 s, or an hour for the task
        that runs in this thread.

        Raises kombu's OperationalError after that, and its EncodeError if the database does not take
        as much: the only two that Celery makes a task's FAILURE of.
        """
        # Someone else's transaction is broken for good: only who began it can repeat it.
        return patiently(
            write, seconds=OUTCOME_PATIENCE if self._in_task else PATIENCE, hopeless=lambda: self.in_transaction
        )

    @property
    def _in_task(self) -> bool:
        """Whether a worker runs a task in this thread, and not just a function that calls it."""
        task = self.app.current_worker_task
        return task is not None and not task.request.called_directly

    def _reading(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except StoreUnavailableError as error:
            raise OperationalError(str(error)) from error

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """With `result_backend_always_retry` Celery tries even longer."""
        return isinstance(exc, OperationalError)


def _options(conf: Any, url: str, broker_is_here: bool) -> Options:
    """The options of the backend; what it has in common with a broker in the same database need be said only there."""
    given = dict(conf.result_backend_transport_options or {})
    if broker_is_here:
        broker = conf.broker_transport_options or {}
        common = {option.name for option in fields(DatabaseOptions)}
        given = {**{name: value for name, value in broker.items() if name in common}, **given}
    return Options.parse(url, given, setting="result_backend_transport_options")


def _is_broker(conf: Any, url: str) -> bool:
    brokers = conf.broker_write_url or ()
    for broker in brokers.split(";") if isinstance(brokers, str) else brokers:
        try:
            if normalise(broker) == normalise(url):
                return True
        except ConfigurationError:
            continue
    return False


def _delivery(task_id: str, request: Any) -> Lease | None:
    """The delivery whose outcome this is. Whoever writes about another task than his own is a client of it."""
    if request is None or getattr(request, "id", None) != task_id:
        return None
    properties = getattr(request, "properties", None) or {}
    return Lease.parse(properties.get("delivery_tag"))


def _duration(seconds: float | None) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None
