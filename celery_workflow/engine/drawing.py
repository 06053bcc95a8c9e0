"""A workflow as a picture: Mermaid or DOT text, with the states of a run if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .definition import Definition, Gather, Map, Role, Sleep, Step, Wait
from .states import StepState

__all__ = ["dot", "mermaid"]

_COLOURS = {
    "succeeded": "#c8e6c9",
    "failed": "#ffcdd2",
    "upstream_failed": "#ffe0b2",
    "cancelled": "#ffe0b2",
    "skipped": "#eeeeee",
    "running": "#bbdefb",
    "sent": "#bbdefb",
}
_IN_MERMAID = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": "<br/>"})
_IN_DOT = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def mermaid(definition: Definition, states: Mapping[str, StepState] | None = None) -> str:
    """A Mermaid flowchart. Dotted lines lead to what undoes a step."""
    names = {step.name: f"n{number}" for number, step in enumerate(definition.steps)}
    lines = ["flowchart TD"]
    for step in definition.steps:
        lines.append(f'    {names[step.name]}["{_escaped(_label(step, states))}"]')
    for start, end, solid in _edges(definition):
        lines.append(f"    {names[start]} {'-->' if solid else '-.->'} {names[end]}")
    for name, state in (states or {}).items():
        if colour := _COLOURS.get(state):
            lines.append(f"    style {names[name]} fill:{colour}")
    return "\n".join(lines)


def dot(definition: Definition, states: Mapping[str, StepState] | None = None) -> str:
    """A Graphviz digraph. Dashed lines lead to what undoes a step."""
    lines = [f"digraph {_quoted(definition.name)} {{"]
    for step in definition.steps:
        colour = _COLOURS.get((states or {}).get(step.name, ""))
        fill = f", style=filled, fillcolor={_quoted(colour)}" if colour else ""
        lines.append(f"    {_quoted(step.name)} [shape=box, label={_quoted(_label(step, states))}{fill}];")
    for start, end, solid in _edges(definition):
        lines.append(f"    {_quoted(start)} -> {_quoted(end)}{'' if solid else ' [style=dashed]'};")
    return "\n".join([*lines, "}"])


def _edges(definition: Definition) -> Iterator[tuple[str, str, bool]]:
    for step in definition.main:
        yield from ((need, step.name, True) for need in step.needs)
    for of, name in definition.compensations.items():
        yield of, name, False


def _label(step: Step, states: Mapping[str, StepState] | None) -> str:
    state = f": {states[step.name]}" if states and step.name in states else ""
    return f"{step.name}{_remark(step)}{state}"


def _remark(step: Step) -> str:
    if step.role is not Role.MAIN:
        return f" ({step.role.replace('_', ' ')})"
    kinds = {Map: "map", Sleep: "sleep", Wait: "signal", Gather: "gather"}
    kind = kinds.get(type(step.action))
    return f" ({kind})" if kind and kind != step.name else ""


def _quoted(text: str) -> str:
    return f'"{text.translate(_IN_DOT)}"'


def _escaped(text: str) -> str:
    return text.translate(_IN_MERMAID)
