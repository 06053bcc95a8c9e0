"""The part of the result backend that runs chords: the database counts, no task polls.

What a task of a header reports, its part of the chord and, with the last part, the message of the
body are one commit where the broker is the same database: a worker may die at any moment, and
either nothing of it has happened or all. With another broker the body is sent first and the chord
finished then, so after a crash in between the body may be sent twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from celery import states
from celery.app.task import Context
from celery.canvas import chord, maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult
from celery.utils.functional import _regen
from kombu.exceptions import OperationalError
from kombu.utils.encoding import bytes_to_str, ensure_bytes

from .canvases import chord_error, drop_errbacks, ends, errbacks, leaves
from .errors import StoreUnavailableError
from .results import NewResult, Part

if TYPE_CHECKING:
    from .process import Process

__all__ = ["Chords"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _Held:
    """A result that waits to be stored together with the part of its chord."""

    task_id: str
    request: Any
    result: NewResult | None = None


_held: ContextVar[_Held | None] = ContextVar("held", default=None)


class Chords:
    """What `SQLBackend` does for chords. Mixed in before Celery's own classes."""

    app: Any
    expires: float | None
    broker_is_here: bool
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    encode_result: Callable[[Any, str], Any]
    exception_to_python: Callable[[Any], Any]
    chord_error_from_stack: Callable[[Any, Exception], Any]

    @property
    def process(self) -> Process:
        raise NotImplementedError

    def patiently(self, write: Callable[[], T]) -> T:
        raise NotImplementedError

    # -- a header is sent -----------------------------------------------------------------

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """A chord is about to be sent."""
        group_id, results = header_result_args[:2]
        shape = None
        # A generator is not unrolled for its shape; what it yields are tasks.
        if not isinstance(results, _regen) and any(isinstance(result, GroupResult) for result in results):
            shape = ensure_bytes(self.encode([result.as_tuple() for result in results]))
        self.patiently(lambda: self.process.chords.open(group_id, header=shape, expires_in=self._chord_kept_for))

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """The last task of the header is about to be sent: it has that many parts."""
        self.patiently(lambda: self.process.chords.set_size(group_id, chord_size, expires_in=self._chord_kept_for))

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """One more task, `result`, belongs to the header."""
        self.patiently(lambda: self.process.chords.add(chord_id))

    @property
    def _chord_kept_for(self) -> timedelta | None:
        seconds = self.app.conf.get("result_chord_expires")
        seconds = self.expires if seconds is None else seconds
        if isinstance(seconds, timedelta):
            return seconds or None
        return timedelta(seconds=seconds) if seconds else None

    # -- a task of a header ends ----------------------------------------------------------

    def mark_as_done(self, task_id: str, result: Any, request: Any = None, *args: Any, **kwargs: Any) -> Any:
        with self._with_its_part(task_id, request):
            return super().mark_as_done(task_id, result, request, *args, **kwargs)  # type: ignore[misc]

    def mark_as_failure(
        self, task_id: str, exc: BaseException, traceback: Any = None, request: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        with self._with_its_part(task_id, request):
            failed = super().mark_as_failure(task_id, exc, traceback, request, *args, **kwargs)  # type: ignore[misc]
        stores = kwargs.get("store_result", args[0] if args else True)
        self._fail_groups(getattr(request, "chain", None), exc, stores)
        return failed

    def mark_as_revoked(self, task_id: str, reason: str = "", request: Any = None, *args: Any, **kwargs: Any) -> Any:
        with self._with_its_part(task_id, request):
            return super().mark_as_revoked(task_id, reason, request, *args, **kwargs)  # type: ignore[misc]

    @contextmanager
    def _with_its_part(self, task_id: str, request: Any) -> Iterator[None]:
        """Inside, the final result of a chord's task is held back until its part is told."""
        if request is None or not request.chord:
            yield
            return
        held = _Held(bytes_to_str(task_id), request)
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)

    def held_back(self, result: NewResult, request: Any) -> bool:
        """Whether the result will be stored together with its part."""
        held = _held.get()
        if held is None or request is not held.request or result.task_id != held.task_id:
            return False
        if not request.group or not request.id:
            return False  # It will not be told.
        held.result = result
        return True

    def on_chord_part_return(self, request: Any, state: str, result: Any, propagate: Any = None, **kwargs: Any) -> None:
        """A task of a header has ended: count it, and with the last one send the body."""
        if not request.group or not request.id:
            return
        held = _held.get()
        new = held.result if held is not None and request is held.request else None
        task_id = bytes_to_str(request.id)
        payload = [task_id, state, self.encode_result(result, state), sorted(getattr(request, "told", ()))]
        part = Part(request.group, task_id, request.group_index, ensure_bytes(self.encode(payload)))
        conclude = self.patiently(lambda: self._return(part, new, request))
        if conclude is not None:
            conclude()

    def _return(self, part: Part, new: NewResult | None, request: Any) -> Callable[[], object] | None:
        """Store and count in one transaction; the answer is what is left to do after it."""
        shares_broker = self.shares_broker
        with self.process.database.transaction() as tx:
            # A second delivery whose result is the valid one now brings the valid part, too.
            stored = new is not None and self.process.results.store(new)
            tally = self.process.chords.return_part(part, replace=stored, expires_in=self._chord_kept_for)
            if not tally.is_due:
                return None
            body = maybe_signature(request.chord, app=self.app)
            try:
                values = self._values(part.group_id)
                if not shares_broker:
                    return lambda: self._send(part.group_id, body, values)
                self._send_within(tx, body, values)
            except ChordError as error:
                # The caller's errbacks run outside of the transaction: nobody knows how long they take.
                failure, told = error, self._told(part.group_id)
                return lambda: self._fail(part.group_id, body, failure, told)
            self.process.chords.finish(part.group_id)
        return None

    # -- the body -------------------------------------------------------------------------

    def _send_within(self, tx: Any, body: Any, values: list[Any]) -> None:
        """Send the body as part of the transaction. Raises ChordError if it cannot be sent at all."""
        try:
            with tx.begin_nested():
                # Kombu would try again on the same broken transaction; `patiently` repeats all of it.
                body.apply_async((values,), retry=False)
        except (OperationalError, StoreUnavailableError) as error:
            raise StoreUnavailableError(str(error)) from error
        except Exception as error:
            if tx.invalidated:
                raise StoreUnavailableError(str(error)) from error
            raise chord_error(f"Callback error: {error!r}", error) from error

    def _send(self, group_id: str, body: Any, values: list[Any]) -> None:
        """Send the body to another broker, then finish the chord."""
        retry_publish = getattr(self.app.amqp, "_retry_publish", _call)
        try:
            retry_publish(body.delay, values)
        except Exception as error:
            logger.exception("the body of chord %r cannot be sent", group_id)
            self._fail(group_id, body, chord_error(f"Callback error: {error!r}", error))
        else:
            self.patiently(lambda: self.process.chords.finish(group_id))

    def _fail(self, group_id: str, body: Any, error: ChordError, told: Collection[str] = ()) -> None:
        """The body will not run: it fails, its errbacks are called but for those `told`, the chord is finished."""
        drop_errbacks(body, told)
        try:
            raise error
        except ChordError:
            logger.exception("Chord %r raised: %r", group_id, error)
            self.chord_error_from_stack(body, error)
            self._fail_outer(body, error, {*told, *errbacks(body)})
        self.patiently(lambda: self.process.chords.finish(group_id))

    def _fail_outer(self, body: Any, error: ChordError, told: Collection[str]) -> None:
        """What Celery leaves out: a body that is a chord fails where its result is, and one that is a
        part of another chord returns to that, whose body has mostly the same errbacks.
        """
        for end in ends(body):
            if end.options.get("chord") or isinstance(body, chord):
                self._fail_end(end, error, told=told, calls_errbacks=isinstance(body, chord))

    def _fail_end(
        self,
        end: Any,
        error: BaseException,
        *,
        stores: bool = True,
        told: Collection[str] = (),
        calls_errbacks: bool = False,
    ) -> None:
        """Record the failure of a task that was never sent."""
        options = end.options
        if not options.get("task_id"):
            return
        request = Context(
            id=options["task_id"],
            task=end.task,
            group=options.get("group_id"),
            group_index=options.get("group_index"),
            chord=options.get("chord"),
            errbacks=options.get("link_error") if calls_errbacks else None,
            delivery_info={},
            told=told,
        )
        self.mark_as_failure(request.id, error, request=request, store_result=stores)

    def _fail_groups(self, chain: Any, error: BaseException, stores: bool) -> None:
        """What Celery leaves out: the tasks of a group at the end of a chain fail when one before them did."""
        for element in chain if isinstance(chain, list | tuple) else ():
            if element.get("subtask_type") == "group":
                for end in ends(maybe_signature(element, app=self.app)):
                    self._fail_end(end, error, stores=stores)

    def _told(self, group_id: str) -> set[str]:
        """The errbacks that were called for failures of parts."""
        return {errback for part in self.process.chords.parts(group_id) for errback in self.decode(part.meta)[3]}

    def _values(self, group_id: str) -> list[Any]:
        """What the tasks of the header returned, in its order. Raises ChordError if one of them failed."""
        returned = [self.decode(part.meta) for part in self.process.chords.parts(group_id)]
        shape = self.process.chords.header(group_id)
        if shape is None:
            return [self._value(*each[:3]) for each in returned]
        nodes = self.decode(shape)
        outcomes = {each[0]: tuple(each[:3]) for each in returned}
        missing = set(leaves(nodes)) - set(outcomes)
        for found in self.process.results.fetch(missing, final=True):
            meta = self.decode(found.meta)
            outcomes[found.task_id] = (found.task_id, meta["status"], meta["result"])
        return [self._shaped(node, outcomes) for node in nodes]

    def _shaped(self, node: Any, outcomes: dict[str, tuple[str, str, Any]]) -> Any:
        (task_id, _), members = node
        if members is not None:
            return [self._shaped(member, outcomes) for member in members]
        if task_id not in outcomes:
            raise ChordError(f"Dependency {task_id} has no result")
        return self._value(*outcomes[task_id])

    def _value(self, task_id: str, state: str, value: Any) -> Any:
        if state in states.EXCEPTION_STATES:
            value = self.exception_to_python(value)
        if state in states.PROPAGATE_STATES:
            raise chord_error(f"Dependency {task_id} raised {value!r}", value)
        return value

    # -- the broker -----------------------------------------------------------------------

    _shared_by: tuple[Process, bool] | None = None

    @property
    def shares_broker(self) -> bool:
        """Whether what the app sends is stored in this very database."""
        process = self.process
        known = self._shared_by
        if known is None or known[0] is not process:
            self._shared_by = known = (process, self._finds_itself(process))
        return known[1] and not self.app.conf.task_always_eager

    def _finds_itself(self, process: Process) -> bool:
        from .transport import Transport

        if not self.broker_is_here:
            return False
        with self.app.producer_or_acquire() as producer:
            transport = producer.connection.transport
        return isinstance(transport, Transport) and transport.process is process


def _call(publish: Callable[..., T], *args: Any) -> T:
    return publish(*args)
