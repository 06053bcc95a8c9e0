"""Random canvases."""

from __future__ import annotations

from typing import Any

from celery import chain, chord, group
from celery.canvas import _chain
from hypothesis import strategies as st

from .tasks import boom, mark

numbers = st.integers(0, 9)


@st.composite
def _tasks(draw: st.DrawFn) -> Any:
    number = draw(numbers)
    return mark.si(number) if draw(st.integers(0, 3)) == 0 else mark.s(number)


def _flat(parts: list[Any]) -> list[Any]:
    """Without groups directly in groups, whose results Celery gives to a chord's body in another order."""
    return [part for whole in parts for part in (_flat(whole.tasks) if isinstance(whole, group) else [whole])]


def _ends_in_group(part: Any) -> bool:
    while isinstance(part, _chain):
        part = part.tasks[-1]
    return isinstance(part, group)


def _group(parts: list[Any]) -> Any:
    """Not of one member alone that ends in a group: in which of the two lists Celery gives, it is not at one with itself."""
    members = _flat(parts)
    return members[0] if len(members) == 1 and _ends_in_group(members[0]) else group(*members)


def _one_result(body: Any) -> Any:
    """Not ending in a group, which Celery does not join if another group follows the chord."""
    end = body
    while isinstance(end, _chain | chord):
        end = end.tasks[-1] if isinstance(end, _chain) else end.body
    return chain(body, mark.s(0)) if isinstance(end, group) else body


def _wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        some.map(lambda parts: chain(*parts)),
        # As `chain`, without what that does to put its parts in order.
        some.map(lambda parts: chain(*parts) if isinstance(parts[0], group) else _chain(*parts)),
        some.map(_group),
        st.tuples(some, inner).map(lambda both: chord(_flat(both[0]), _one_result(both[1]))),
        st.lists(numbers, max_size=3).map(mark.map),
        st.lists(st.tuples(numbers, numbers), max_size=3).map(mark.starmap),
    )


#: Some of their tasks fail.
failing_canvases: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.builds(boom.si), _tasks(), _tasks()), _wider, max_leaves=6
)

#: Chunks come alone: inside a canvas Celery sends them off and answers with ids.
_chunks = st.lists(st.tuples(numbers), min_size=1, max_size=4).map(lambda items: mark.chunks(items, 2))

_chords_of_groups = st.tuples(st.lists(_tasks(), min_size=1, max_size=3), st.lists(_tasks(), min_size=2, max_size=3)).map(
    lambda both: chord(both[0], group(both[1]))
)

canvases: st.SearchStrategy[Any] = st.one_of(*[st.recursive(_tasks(), _wider, max_leaves=6)] * 9, _chunks, _chords_of_groups)
