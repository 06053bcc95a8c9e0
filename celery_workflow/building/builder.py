"""How workflows are written: a function that calls a builder once for each step."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from celery import Celery
from celery.canvas import Signature, _chain, chord, group

from ..engine.codec import to_json
from ..engine.definition import Action, Call, Definition, Map, OnItemError, Role, Sleep, Step, Task, Wait
from ..engine.policies import NO_RETRY, Otherwise, RetryPolicy
from ..engine.values import RUN, Ref
from ..errors import DefinitionError
from .refs import StepRef, plain
from .signatures import call_of, policy_of, step_name

__all__ = ["DEFINITION", "Builder", "Workflow"]

#: Under this key the starter task of a workflow answers with the definition it has built.
DEFINITION = "celery_workflow.definition"

Duration = float | int | timedelta


class Builder:
    """Collects the steps of one workflow. Each call returns a reference to the step's result."""

    def __init__(self, name: str, *, retry: RetryPolicy = NO_RETRY, queue: str | None = None) -> None:
        self.name = name
        self._retry = retry
        self._queue = queue
        self._steps: list[Step] = []

    def step(
        self,
        signature: Signature,
        *,
        name: str | None = None,
        after: Any = (),
        when: Any = True,
        on_unmet: str = "skip",
        on_exhausted: str = "fail",
        retry: Any = None,
        timeout: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        compensate: Signature | Callable[[StepRef], Signature] | None = None,
    ) -> StepRef:
        """Run a task. `compensate` undoes it if the run fails or is cancelled after it succeeded: a signature, or a
        function that makes one of the reference to this step. `timeout` is a hard limit, in seconds."""
        call = self._call(signature, timeout=timeout, queue=queue, priority=priority)
        return self._add(Task(call=call), name, after, when, on_unmet, on_exhausted, retry, compensate)

    def map(
        self,
        task: Any,
        items: Any,
        *,
        name: str | None = None,
        after: Any = (),
        when: Any = True,
        on_unmet: str = "skip",
        on_exhausted: str = "fail",
        retry: Any = None,
        timeout: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_parallel: int | None = None,
        on_error: str = "fail",
        star: bool = False,
    ) -> StepRef:
        """Run a task, or a signature, once for each item of a list, which may be known only then. The result is the
        list of results. `on_error`: fail (begin no more), finish (the others first), skip (None for it)."""
        if isinstance(task, Workflow):
            raise DefinitionError(f"{_place()}: a map runs tasks; let each start the workflow {task.name!r} by itself")
        signature = task if isinstance(task, Signature) else task.s()
        listed = plain(items)
        if not isinstance(listed, list | Ref):
            raise DefinitionError(f"{_place()}: a map needs a list, or a result that is one, not {items!r}")
        if max_parallel is not None and not (isinstance(max_parallel, int) and max_parallel >= 1):
            raise DefinitionError(f"{_place()}: max_parallel is {max_parallel!r}, but must be a number from 1 on")
        action = Map(
            call=self._call(signature, timeout=timeout, queue=queue, priority=priority),
            items=listed,
            star=star,
            max_parallel=max_parallel,
            on_error=_word(OnItemError, on_error),
        )
        return self._add(action, name, after, when, on_unmet, on_exhausted, retry)

    def expand(
        self,
        signature: Signature,
        *,
        name: str | None = None,
        after: Any = (),
        when: Any = True,
        on_unmet: str = "skip",
        on_exhausted: str = "fail",
        retry: Any = None,
        timeout: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        compensate: Signature | Callable[[StepRef], Signature] | None = None,
    ) -> StepRef:
        """Run a task that returns a canvas, then that canvas; the result is the canvas's. Options as for `step`: those of
        a task are for the one that returns the canvas."""
        call = self._call(signature, timeout=timeout, queue=queue, priority=priority)
        return self._add(Task(call=call, expands=True), name, after, when, on_unmet, on_exhausted, retry, compensate)

    def sub(
        self, other: Workflow, /, *, name: str | None = None, after: Any = (), when: Any = True, **inputs: Any
    ) -> StepRef:
        """Run another workflow with these inputs; the result is its result."""
        if not isinstance(other, Workflow):
            raise DefinitionError(f"{_place()}: sub() runs a workflow that @workflow has declared, not {other!r}")
        try:
            other.check_inputs(inputs)
        except TypeError as error:
            raise DefinitionError(f"{_place()}: workflow {other.name!r} cannot have these inputs: {error}") from None
        call = Call(task=other.name, kwargs=plain(inputs))
        return self._add(Task(call=call, expands=True), name, after, when)

    def sleep(self, duration: Any, *, name: str | None = None, after: Any = (), when: Any = True) -> StepRef:
        """Wait for a timedelta or a number of seconds, or until a datetime; no worker is held."""
        is_moment = isinstance(duration, datetime)
        action = Sleep(until=_iso(duration)) if is_moment else Sleep(seconds=plain(_seconds(duration)))
        return self._add(action, name or self._free("sleep"), after, when)

    def sleep_until(self, moment: Any, *, name: str | None = None, after: Any = (), when: Any = True) -> StepRef:
        """Wait until a datetime, or until the ISO text that a step's result has."""
        return self._add(Sleep(until=_iso(moment)), name or self._free("sleep"), after, when)

    def wait_for(
        self,
        signal: str,
        *,
        timeout: Any,
        on_timeout: str = "fail",
        name: str | None = None,
        after: Any = (),
        when: Any = True,
    ) -> StepRef:
        """Wait for a signal; its payload is the result. A timeout of None, for ever, has to be said.
        `on_timeout`: fail, skip, skip-cascade or discard."""
        action = Wait(signal=signal, timeout=plain(_seconds(timeout)), on_timeout=_word(Otherwise, on_timeout))
        return self._add(action, name or self._free(signal), after, when)

    def on_success(self, signature: Signature, *, name: str | None = None) -> None:
        """When the run has succeeded, call this with the run's result before its own arguments."""
        self._handler(Role.ON_SUCCESS, signature, name, StepRef(RUN)["result"])

    def on_failure(self, signature: Signature, *, name: str | None = None) -> None:
        """When the run has failed, call this with a dict that tells of it (id, step, error and so on)."""
        self._handler(Role.ON_FAILURE, signature, name, StepRef(RUN))

    def on_cancel(self, signature: Signature, *, name: str | None = None) -> None:
        """When the run has been cancelled, call this with a dict that tells of it."""
        self._handler(Role.ON_CANCEL, signature, name, StepRef(RUN))

    def definition(self, result: Any = None, **options: Any) -> Definition:
        """What has been built; without a result, that of the steps that no other needs."""
        chosen = plain(result) if result is not None else self._last()
        return Definition(name=self.name, steps=tuple(self._steps), result=chosen, **options)

    def _add(
        self,
        action: Action,
        name: str | None = None,
        after: Any = (),
        when: Any = True,
        on_unmet: str = "skip",
        on_exhausted: str = "fail",
        retry: Any = None,
        compensate: Any = None,
    ) -> StepRef:
        chosen = name or self._free(action.call.task if isinstance(action, Task | Map) else "gather")
        step = Step(
            name=chosen,
            action=action,
            after=_names(after),
            when=plain(when),
            on_unmet=_word(Otherwise, on_unmet),
            on_exhausted=_word(Otherwise, on_exhausted),
            retry=self._retry if retry is None else _policy(retry),
            place=_place(),
        )
        self._steps.append(step)
        ref = StepRef(chosen)
        if compensate is not None:
            self._undo(chosen, compensate if isinstance(compensate, Signature) else compensate(ref))
        return ref

    def _undo(self, of: str, signature: Signature) -> None:
        call = self._call(signature)
        self._steps.append(
            Step(
                name=self._free(call.task),
                action=Task(call=call),
                role=Role.COMPENSATION,
                of=(of,),
                retry=self._retry,
                place=_place(),
            )
        )

    def _handler(self, role: Role, signature: Signature, name: str | None, told: StepRef) -> None:
        call = self._call(signature, told)
        step = Step(name=name or self._free(call.task), action=Task(call=call), role=role, retry=self._retry, place=_place())
        self._steps.append(step)

    def _call(
        self,
        signature: Signature,
        *args: Any,
        timeout: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
    ) -> Call:
        if not isinstance(signature, Signature):
            raise DefinitionError(f"{_place()}: a step is a signature such as task.s(...), not {signature!r}")
        if isinstance(signature, group | _chain | chord):
            raise DefinitionError(f"{_place()}: a step is one task; a task that returns a canvas goes into expand()")
        limit = None if timeout is None else _seconds(timeout)
        if limit is not None and not limit > 0:
            raise DefinitionError(f"{_place()}: timeout is {timeout}: the task would never run")
        own = {"time_limit": limit, "queue": queue, "priority": priority}
        options = {key: value for key, value in own.items() if value is not None}
        if self._queue and "queue" not in {**signature.options, **options}:
            options["queue"] = self._queue
        return call_of(signature, *args, options=options)

    def _free(self, wanted: str) -> str:
        return step_name(wanted, (step.name for step in self._steps))

    def _last(self) -> Any:
        needed = {name for step in self._steps for name in step.needs if step.role is Role.MAIN}
        last = [plain(StepRef(step.name)) for step in self._steps if step.role is Role.MAIN and step.name not in needed]
        return last[0] if len(last) == 1 else last


class Workflow:
    """A workflow by name: a builder function, and the settings all its runs share."""

    def __init__(self, app: Celery, build: Callable[..., Any], **settings: Any) -> None:
        self.app = app
        self.name: str = settings.pop("name", None) or f"{build.__module__}.{build.__name__}"
        self._function = build
        self._retry = _policy(settings.pop("retry", None))
        self._queue: str | None = settings.pop("queue", None)
        self._key: str | Callable[..., str] | None = settings.pop("concurrency_key", None)
        self._elsewhere: Collection[str] = settings.pop("elsewhere", ())
        self._settings = {"version": 1, "fail_fast": True, "timeout": None}
        if unknown := settings.keys() - self._settings.keys():
            raise DefinitionError(f"{_place()}: workflow {self.name!r} has no setting {', '.join(sorted(unknown))}")
        self._settings |= {**settings, "timeout": _seconds(settings.get("timeout"))}

        def answer(**inputs: Any) -> dict[str, Any]:
            return self._answer(**inputs)

        #: Where it is declared, file and line.
        self.place = _place()
        self._answering = answer.__code__
        #: Its task: run by a worker, it starts a run; as a step of another workflow it says what that run is made of.
        self.task = app.task(answer, name=self.name, shared=False)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def build(self, **inputs: Any) -> Definition:
        """The graph of a run with these inputs. Raises DefinitionError if it is not well formed."""
        builder = Builder(self.name, retry=self._retry, queue=self._queue)
        definition = builder.definition(self._function(builder, **inputs), **self._settings)
        definition.check_tasks({*self.app.tasks, *self._elsewhere})
        # Celery keeps the first task of a name; who starts this one by name would run that.
        if getattr(self.app.tasks[self.name].run, "__code__", None) is not self._answering:
            raise DefinitionError(f"{self.place}: a task is called {self.name!r} already: the workflow needs another name")
        return definition

    def is_of(self, function: Callable[..., Any]) -> bool:
        """Whether it is made of this function, perhaps of a module that was loaded again, or as ``__main__``, too."""
        return bool(_origin(function) == _origin(self._function))

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Raises TypeError if the function does not take inputs of these names."""
        inspect.signature(self._function).bind(None, **inputs)

    def concurrency_key(self, **inputs: Any) -> str | None:
        """Runs of one key follow each other: the key of a run with these inputs."""
        if self._key is None:
            return None
        if not isinstance(self._key, str):
            return self._key(**inputs)
        bound = inspect.signature(self._function).bind(None, **inputs)
        bound.apply_defaults()
        try:
            return self._key.format(**{**bound.arguments, **inputs})
        except KeyError as error:
            raise DefinitionError(
                f"{self.place}: concurrency_key is {self._key!r}, and no input is called {error}"
            ) from None

    def _answer(self, **inputs: Any) -> dict[str, Any]:
        return {DEFINITION: to_json(self.build(**inputs))}


def _origin(function: Callable[..., Any]) -> Any:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return function if code is None else (code.co_filename, code.co_qualname)


def _seconds(duration: Any) -> Any:
    """Seconds, or the reference to a result that will be some; None for no end."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if duration is None or isinstance(duration, int | float | StepRef):
        return duration
    raise DefinitionError(f"{_place()}: {duration!r} is no duration: give a timedelta, or seconds")


def _iso(moment: Any) -> Any:
    """A moment as text, or the reference to a result that will be one."""
    if isinstance(moment, StepRef):
        return plain(moment)
    try:
        return (moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)).isoformat()
    except (TypeError, ValueError):
        raise DefinitionError(f"{_place()}: {moment!r} is no moment: give a datetime, or ISO 8601") from None


def _policy(retry: Any) -> RetryPolicy:
    try:
        return policy_of(retry)
    except DefinitionError as error:
        raise DefinitionError(f"{_place()}: {error}") from None


def _names(after: Any) -> tuple[str, ...]:
    given = (
        () if after is None else after if isinstance(after, Iterable) and not isinstance(after, str | StepRef) else [after]
    )
    names = tuple(one.name if isinstance(one, StepRef) else one for one in given)
    if not all(isinstance(name, str) for name in names):
        raise DefinitionError(f"{_place()}: after is {after!r}, but must be a step, or a list of steps")
    return names


def _word(kind: Any, word: str) -> Any:
    try:
        return kind(word)
    except ValueError:
        raise DefinitionError(f"{_place()}: {word!r} is none of {', '.join(kind)}") from None


def _place() -> str:
    """File and line of the code outside this package that is being run."""
    package = __name__.partition(".")[0]
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == package and frame.f_back:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
