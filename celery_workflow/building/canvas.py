"""A Celery canvas as a definition: the same tasks with the same arguments, results as Celery gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from celery.canvas import Signature, _chain, chord, chunks, group, maybe_signature
from celery.utils.functional import arity_greater, maybe_list

from ..engine.codec import from_json
from ..engine.definition import Definition, Gather, Role, Step, Task
from ..engine.policies import Otherwise
from ..engine.values import RUN, Ref, references
from ..errors import DefinitionError
from .refs import plain
from .signatures import call_of, step_name

__all__ = ["durable", "expansion_of"]

#: The task that calls an error callback as Celery itself does: with request, exception and traceback.
ERRBACK = "celery_workflow.errback"


def durable(canvas: Any, *, name: str = "canvas", app: Celery | None = None, **options: Any) -> Definition:
    """The workflow that does what the canvas does. Options as of `Definition`: version, fail_fast, timeout.

    Callbacks (`link`) become steps whose failure harms nobody; error callbacks are called once, when the run has
    failed. Raises DefinitionError for what cannot be kept.
    """
    signature = maybe_signature(canvas, app=app)
    if not isinstance(signature, Signature):
        raise DefinitionError(f"{name}: not a canvas: {canvas!r}")
    importer = _Importer(app or signature.app)
    out = importer.add(signature, _In())
    return Definition(name=name, steps=(*importer.steps, *importer.errbacks()), result=out.value, **options)


def expansion_of(result: Any, *, name: str, app: Celery) -> Definition:
    """The definition in what a task that expands has returned: a canvas, or a workflow's own answer."""
    from .builder import DEFINITION

    if isinstance(result, dict) and DEFINITION in result:
        definition = from_json(result[DEFINITION])
        assert isinstance(definition, Definition)
        return definition
    if not isinstance(result, dict) or "task" not in result:
        raise DefinitionError(f"{name}: an expanding step returns a canvas, not {type(result).__name__}")
    return durable(result, name=name, app=app)


@dataclass(frozen=True)
class _In:
    """What comes from the part before: arguments, and the steps to wait for where arguments do not tell."""

    args: tuple[Any, ...] = ()
    after: tuple[str, ...] = ()
    #: Options and callbacks of the enclosing parts.
    options: dict[str, Any] = field(default_factory=dict)
    errbacks: tuple[Any, ...] = ()


@dataclass(frozen=True)
class _Out:
    """A part's result, and the steps at its end."""

    value: Any
    ends: tuple[str, ...]


class _Importer:
    def __init__(self, app: Celery) -> None:
        self.app = app
        self.steps: list[Step] = []
        #: Each error callback once, with the steps it belongs to.
        self._errbacks: dict[str, tuple[Any, list[str]]] = {}
        self._names: set[str] = set()
        #: Inside a callback, whose failure harms nobody.
        self._on_exhausted = Otherwise.FAIL

    def add(self, signature: Any, given: _In) -> _Out:
        """Add the steps of a part."""
        signature = _opened(signature, self.app)
        if isinstance(signature, _chain):
            return self._chain(signature, given)
        if isinstance(signature, group):
            return self._group(_members(signature, self.app), given, signature.options)
        if isinstance(signature, chord):
            return self._chord(signature, given)
        return self._task(signature, given)

    def errbacks(self) -> Iterator[Step]:
        for signature, names in self._errbacks.values():
            yield self._errback(signature, tuple(dict.fromkeys(names)))

    def _task(self, signature: Signature, given: _In) -> _Out:
        call = call_of(signature, *given.args, options=_winning(given.options, signature))
        used = {ref.step for ref in references([call.args, call.kwargs])}
        name = self._name(call.task)
        after = tuple(name for name in given.after if name not in used)
        self.steps.append(Step(name=name, action=Task(call=call), after=after, on_exhausted=self._on_exhausted))
        out = _Out(Ref(name), (name,))
        for errback in (*given.errbacks, *_linked(signature, "link_error")):
            self._note_errback(errback, name)
        self._callbacks((*maybe_list(given.options.get("link") or ()), *_linked(signature, "link")), out)
        return out

    def _chain(self, signature: Any, given: _In) -> _Out:
        parts = _parts(signature, self.app)
        if not parts:
            raise DefinitionError("an empty chain does nothing")
        errbacks = (*given.errbacks, *_linked(signature, "link_error"))
        first = {**signature.options, **given.options}
        links = [*_linked(signature, "link"), *maybe_list(given.options.get("link") or ())]
        passed = _In((*given.args, *plain(signature.args)), given.after, _without_links(first), errbacks)
        out = _Out(None, ())
        for number, part in enumerate(parts, 1):
            if number == len(parts):
                passed = _In(passed.args, passed.after, {**passed.options, "link": links}, errbacks)
            out = self.add(part, passed)
            if isinstance(part, group) and number < len(parts):
                out = self._joined(out, parts[number])
            passed = _In((out.value,), out.ends, {}, errbacks)
        return out

    def _group(self, members: Sequence[Any], given: _In, options: dict[str, Any]) -> _Out:
        if given.options.get("link"):
            raise DefinitionError("a group has no callbacks, as in Celery: make it the header of a chord")
        shared = _In(given.args, given.after, _without_links({**options, **given.options}), given.errbacks)
        outs = [self.add(member, shared) for member in members]
        return _Out([out.value for out in outs], tuple(name for out in outs for name in out.ends))

    def _chord(self, signature: Any, given: _In) -> _Out:
        if signature.body is None:
            raise DefinitionError("a chord without a body: use a group")
        body = maybe_signature(signature.body, app=self.app)
        options = {**_without_links(signature.options), **given.options}
        # A header that fails fails the body, whose error callbacks are told.
        told = (*given.errbacks, *_linked(signature, "link_error"), *_errbacks_of(body, self.app))
        members = _members(_header(signature, self.app), self.app)
        shared = _In(given.args, given.after, _without_links(options), told)
        joined = self._joined(self._group(members, shared, {}), body)
        after = joined.ends or given.after
        return self.add(body, _In((joined.value,), after, options, (*given.errbacks, *_linked(signature, "link_error"))))

    def _joined(self, out: _Out, follower: Any) -> _Out:
        """The list of a group's results; put together once where several tasks want it."""
        if _leads(follower, self.app) < 2 or len(out.ends) < 2:
            return out
        name = self._name("gather")
        self.steps.append(Step(name=name, action=Gather(value=out.value), on_exhausted=self._on_exhausted))
        return _Out(Ref(name), (name,))

    def _callbacks(self, callbacks: Sequence[Any], out: _Out) -> None:
        outer, self._on_exhausted = self._on_exhausted, Otherwise.SKIP_CASCADE
        for callback in callbacks:
            self.add(callback, _In((out.value,), out.ends))
        self._on_exhausted = outer

    def _note_errback(self, errback: Any, name: str) -> None:
        signature = maybe_signature(errback, app=self.app)
        key = json.dumps(plain(signature), sort_keys=True, default=repr)
        self._errbacks.setdefault(key, (signature, []))[1].append(name)

    def _errback(self, signature: Any, of: tuple[str, ...]) -> Step:
        if isinstance(signature, group | _chain | chord):
            raise DefinitionError(f"an error callback is one task, not {signature!r}")
        call = call_of(signature, Ref(RUN, ("task_id",)))
        if _wants_request(signature, self.app):
            call = call_of(self.app.signature(ERRBACK), Ref(RUN), plain(signature))
        name = self._name(signature.task)
        return Step(name=name, action=Task(call=call), role=Role.ON_FAILURE, of=of)

    def _name(self, task: str) -> str:
        name = step_name(task, self._names)
        self._names.add(name)
        return name


def _opened(signature: Any, app: Celery) -> Any:
    """The signature of what may be its dict; chunks as the group they are."""
    signature = maybe_signature(signature, app=app)
    # A copy of chunks is not of their class any more.
    if isinstance(signature, Signature) and signature.task == "celery.chunks":
        kwargs = signature.kwargs
        signature = chunks(kwargs["task"], kwargs["it"], kwargs["n"], app=app).group()
    return signature


def _parts(signature: Any, app: Celery) -> list[Any]:
    """The parts of a chain as Celery runs it: chains in it spliced, groups of one taken out, empty groups dropped."""
    parts: list[Any] = []
    for part in signature.tasks:
        part = _opened(part, app)
        if isinstance(part, group) and len(part.tasks) == 1:
            part = _opened(part.tasks[0], app)
        parts += _spliced(part, app) if isinstance(part, _chain) else [part]
    full = [part for part in parts if not (isinstance(part, group) and not part.tasks)]
    return full or parts[:1]


def _spliced(inner: Any, app: Celery) -> list[Any]:
    """A chain's parts, with what was said about the chain said about them."""
    parts = _parts(inner, app)
    if inner.options or inner.args:
        parts = _parts(type(inner)(*inner.unchain_tasks(), app=app), app)
    return parts


def _members(signature: Any, app: Celery) -> list[Any]:
    """A group's members; groups among them are the same as their members, with their options."""
    found: list[Any] = []
    for member in signature.tasks:
        member = _opened(member, app)
        if isinstance(member, group):
            found += _members(member, app)
        elif not (isinstance(member, _chain) and not member.tasks):
            found.append(member)
    return found


def _header(signature: Any, app: Celery) -> Any:
    """The header of a chord as a group, however it was written."""
    header = signature.tasks
    header = maybe_signature(header, app=app) if isinstance(header, dict) else header
    return header if isinstance(header, group) else group(header, app=app)


def _leads(signature: Any, app: Celery) -> int:
    """How many tasks are given what comes before."""
    signature = _opened(signature, app)
    if isinstance(signature, group):
        return sum(_leads(member, app) for member in _members(signature, app))
    if isinstance(signature, chord):
        return _leads(_header(signature, app), app)
    if isinstance(signature, _chain):
        return _leads(_parts(signature, app)[0], app) if signature.tasks else 0
    return 1


def _errbacks_of(signature: Any, app: Celery) -> list[Any]:
    """The error callbacks of a part, at any depth."""
    found = _linked(signature, "link_error")
    inner = signature.tasks if isinstance(signature, group | _chain) else ()
    if isinstance(signature, chord):
        inner = [signature.body]
    for part in inner:
        found += _errbacks_of(maybe_signature(part, app=app), app)
    return found


def _linked(signature: Any, option: str) -> list[Any]:
    return list(maybe_list(signature.options.get(option)) or [])


def _without_links(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in ("link", "link_error")}


def _winning(options: dict[str, Any], signature: Signature) -> dict[str, Any]:
    """Options from outside win, but for the stamps that the signature has."""
    own = (
        {"stamped_headers", *(signature.options.get("stamped_headers") or ())}
        if signature.options.get("stamped_headers")
        else set()
    )
    return {key: value for key, value in options.items() if key not in own}


def _wants_request(signature: Any, app: Celery) -> bool:
    """Whether Celery would call it with (request, exception, traceback) rather than with a task id."""
    task = app.tasks.get(signature.task)
    header = getattr(task, "__header__", None)
    if header is None or not hasattr(header, "__code__"):
        return False
    return bool(arity_greater(header, 1 + (0 if signature.immutable else len(signature.args))))
