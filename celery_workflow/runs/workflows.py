"""Starting runs: of workflows, of canvases, one or many."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.exceptions import Ignore

from kombu_sqlqueue import in_transaction

from ..building import builder
from ..building.canvas import durable as imported
from ..building.signatures import micros_of
from ..engine.definition import Definition
from ..errors import DefinitionError, DuplicateRunError, WorkflowError
from .handle import Run
from .hooks import install
from .identity import identity_of
from .runtime import Runtime, runtime_of
from .serializing import as_stored
from .store import NewRun

__all__ = ["Durable", "Starter", "Workflow", "durable", "workflow"]

#: What is built for the inputs of a run: its definition and the key it shares with others.
Build = Callable[..., tuple[Definition, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run is started.

    `id` makes starting idempotent: a second start of the same id returns the run that is there, or with `on_conflict`
    "raise" raises DuplicateRunError. `eta` (an aware datetime) or `countdown` (seconds) delays the start. `labels` and
    `tenant` are for queries. `priority` is that of steps that have none. Runs with the same `concurrency_key` follow each
    other. `connection` is a session or connection with a transaction, as for `in_transaction`: the run is there once
    that commits.
    """

    id: str | None = None
    on_conflict: str = "return"
    labels: Mapping[str, str] | None = None
    tenant: str | None = None
    eta: datetime | None = None
    countdown: float | timedelta | None = None
    priority: int | None = None
    concurrency_key: str | None = None
    connection: Any = None

    def __post_init__(self) -> None:
        if self.on_conflict not in ("return", "raise"):
            raise ValueError(f"on_conflict is {self.on_conflict!r}, but must be return or raise")
        for name, given in ("id", self.id), ("concurrency_key", self.concurrency_key):
            if given == "":
                raise ValueError(f"{name} is empty: leave it out, or say which")
        if self.priority is not None and (not isinstance(self.priority, int) or isinstance(self.priority, bool)):
            raise ValueError(f"priority is {self.priority!r}, but must be a whole number, as for apply_async")
        if self.labels is not None and not isinstance(self.labels, Mapping):
            raise ValueError(f"labels are {self.labels!r}, but must be a mapping of names to values")
        if self.eta is not None and self.countdown is not None:
            raise ValueError("a start has an eta or a countdown, not both")
        if self.eta is not None and self.eta.tzinfo is None:
            raise ValueError(f"eta is {self.eta}, but must be an aware datetime, such as datetime(…, tzinfo=UTC)")

    def start_at(self, now: datetime) -> int | None:
        """When a run starts that is asked for now, in microseconds since 1970; None for at once."""
        eta = self.eta
        if self.countdown is not None:
            eta = now + (self.countdown if isinstance(self.countdown, timedelta) else timedelta(seconds=self.countdown))
        return None if eta is None else micros_of(eta)


class Starter:
    """Something that runs can be started of, with options."""

    def __init__(self, app: Celery, build: Build, options: Options | None = None) -> None:
        self.app = app
        self._build = build
        self._options = options or Options()

    def options(self, **options: Any) -> Starter:
        """The same with these options, as of `Options`. Raises TypeError for one there is not."""
        return Starter(self.app, self._build, replace(self._options, **options))

    def start(self, /, *, _id: str | None = None, **inputs: Any) -> Run:
        """Start a run with these inputs; the answer is there before anything of it has run.

        Raises DefinitionError if the graph is not well formed, TypeError or ValueError for inputs that do not fit into JSON,
        DuplicateRunError.
        """
        return self._started(self.new(_id=_id, **inputs))

    def new(self, /, *, _id: str | None = None, **inputs: Any) -> NewRun:
        """What `start` starts, for `Workflows.start_many`."""
        given = self._options
        definition, key = self._build(**inputs)
        return NewRun(
            id=_id or given.id or str(uuid.uuid4()),
            definition=definition,
            inputs={name: _stored(name, value) for name, value in inputs.items()},
            labels={str(name): str(value) for name, value in (given.labels or {}).items()},
            tenant=given.tenant,
            priority=given.priority,
            concurrency_key=given.concurrency_key or key,
            start_at=given.start_at(runtime_of(self.app).now()),
        )

    def _started(self, new: NewRun) -> Run:
        runtime = startable(self.app)
        with nullcontext() if self._options.connection is None else in_transaction(self._options.connection):
            [is_new] = runtime.create([new])
        if not is_new and self._options.on_conflict == "raise":
            raise DuplicateRunError(f"there is a run {new.id} already")
        return Run(runtime, new.id)


class Workflow(builder.Workflow):
    """A workflow by name, whose runs can be started here, or by its task of the same name from anywhere."""

    def __init__(self, app: Celery, build: Callable[..., Any], **settings: Any) -> None:
        super().__init__(app, build, **settings)
        install(app)
        workflows = runtime_of(app).workflows
        known = workflows.get(self.name)
        if known is not None and not known.is_of(build):
            raise DefinitionError(
                f"{self.place}: a workflow {self.name!r} is declared at {known.place} already: this one needs another name"
            )
        workflows[self.name] = self

    def start(self, /, *, _id: str | None = None, **inputs: Any) -> Run:
        """Start a run. As `Starter.start`."""
        return self.options().start(_id=_id, **inputs)

    def options(self, **options: Any) -> Starter:
        """To start runs with options, as of `Options`."""
        return Starter(self.app, self._built, Options(**options))

    def s(self, **inputs: Any) -> Any:
        """A signature of its task: a worker starts the run, whose id is the task's. For beat, groups and other programs; it
        fails in a chain or chord, which would not go on when the run has ended."""
        return self.task.s(**inputs)

    def delay(self, **inputs: Any) -> Any:
        """Let a worker start a run, whose id is that of the result."""
        return self.task.delay(**inputs)

    def apply_async(self, kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """As `delay`, with Celery's options for the task that starts the run."""
        return self.task.apply_async(kwargs=dict(kwargs or {}), **options)

    def _built(self, **inputs: Any) -> tuple[Definition, str | None]:
        return self.build(**inputs), self.concurrency_key(**inputs)

    def _answer(self, **inputs: Any) -> dict[str, Any]:
        request = self.task.request
        step = identity_of(request)
        if step is not None and not step.expands:
            # Its answer would be taken for the result.
            raise WorkflowError(f"{self.name} is a workflow: as a step of another it goes into sub() or expand()")
        if request.called_directly or step is not None:
            return super()._answer(**inputs)
        if request.chain or request.chord or request.callbacks:
            raise WorkflowError(
                f"what follows the workflow {self.name} in a canvas would never begin: Celery does not wait for a run. Let a"
                " workflow be all of it"
            )
        self.options(id=request.id).start(**inputs)
        # Its result is that of the run, which is to come.
        raise Ignore("the run has started")


class Durable(Starter):
    """A canvas as a workflow."""

    def __init__(self, app: Celery, definition: Definition, options: Options | None = None) -> None:
        super().__init__(app, lambda: (definition, None), options)
        self.definition = definition

    def options(self, **options: Any) -> Durable:
        """The same with these options, as of `Options`."""
        return Durable(self.app, self.definition, replace(self._options, **options))


def _stored(name: str, value: Any) -> Any:
    try:
        return as_stored(value)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"the input {name!r} does not fit into JSON: {error}") from error


def workflow(app: Celery, **settings: Any) -> Callable[[Callable[..., Any]], Workflow]:
    """Decorator: a function that is given a builder and the run's inputs, and returns the result's reference.

    Settings: `name`, `version`, `fail_fast`, `timeout` (of a run), `retry` and `queue` (where a step has none of its
    own), `concurrency_key` (text with the inputs' names in braces, or a function of the inputs), `elsewhere` (names
    of tasks that only other programs know).
    """
    if not isinstance(app, Celery):
        raise TypeError(f"it is @workflow(app) or @workflow(app, name=…), with the Celery app, not {app!r}")
    return lambda function: Workflow(app, function, **settings)


def durable(canvas: Any, *, name: str = "canvas", app: Celery | None = None, **options: Any) -> Durable:
    """The workflow that does what a canvas does, with the results that Celery gives.

    Options as of a workflow: `version`, `fail_fast`, `timeout`. Callbacks (`link`) become steps whose failure harms
    nobody; error callbacks are called once, when the run has failed. Raises DefinitionError for what cannot be kept.
    """
    definition = imported(canvas, name=name, app=app, **options)
    chosen = app or canvas.app
    install(chosen)
    return Durable(chosen, definition)


def startable(app: Celery) -> Runtime:
    """The app's workflows, in which it takes part from now on."""
    install(app)
    return runtime_of(app)
