"""Which inputs and outputs of a trace belong together: one rule each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .forms import Form
from .recording import Trace


@dataclass(frozen=True)
class Component:
    """Tensors that hang together.

    Attributes:
        sources: inputs, in the order of the headers.
        targets: outputs, in the order of the layout; none where the inputs are dropped.
        forms: the normal form of each target; ``None`` where one has none.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    forms: tuple[Form | None, ...]


def components(trace: Trace, forms: Mapping[str, Form | None]) -> list[Component]:
    """Return the components of TRACE, in the order of their first input; those without one last."""
    groups = Groups()
    for name in trace.headers:
        groups.find(f"<{name}")
    for name, form in forms.items():
        for source in sources_of(trace, name, form):
            groups.unite(f"<{source}", f">{name}")
        groups.find(f">{name}")
    members: dict[str, tuple[list[str], list[str]]] = {}
    for name in trace.headers:
        members.setdefault(groups.find(f"<{name}"), ([], []))[0].append(name)
    for name in forms:
        members.setdefault(groups.find(f">{name}"), ([], []))[1].append(name)
    return [
        Component(tuple(sources), tuple(targets), tuple(forms[name] for name in targets))
        for sources, targets in members.values()
    ]


class Groups:
    """Which names are in one group (union-find)."""

    def __init__(self) -> None:
        self.parents: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the name that stands for the group of NAME."""
        root = name
        while (above := self.parents.setdefault(root, root)) != root:
            root = above
        while self.parents[name] != root:
            self.parents[name], name = root, self.parents[name]
        return root

    def unite(self, one: str, other: str) -> None:
        """Make one group of two; the first one's name stands for it."""
        self.parents[self.find(other)] = self.find(one)


def sources_of(trace: Trace, name: str, form: Form | None) -> set[str]:
    """Return the inputs that the output NAME is made of."""
    if form is not None:
        return {piece.source for piece in form.pieces}
    return {
        trace.names[array] for array in above(trace, [trace.outputs[name]]) & trace.names.keys()
    }


def above(trace: Trace, arrays: list[str], stop: Mapping[str, object] | None = None) -> set[str]:
    """Return ARRAYS and all that they are made of, by id, not looking beyond those in STOP."""
    seen: set[str] = set()
    pending = list(arrays)
    while pending:
        array = pending.pop()
        if array in seen:
            continue
        seen.add(array)
        if array in trace.makers and not (stop and array in stop):
            pending += [operand[0] for operand in trace.makers[array]["inputs"]]
    return seen
