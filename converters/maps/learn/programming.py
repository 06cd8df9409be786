"""The program of a component that no layout explains, from the nodes of its trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from ....errors import UnsupportedError
from ..computed import Computed
from ..expressions import Definition, Literal
from ..names import Name
from ..programs import Program, Step, constant_steps, step_of
from ..rules import Term
from .components import Component, above
from .drafting import FAMILY
from .families import tensors
from .opaque import Node
from .recording import Trace

LONGEST: Final = 64  # numbers of a constant that a program writes out
MOST_STEPS: Final = 2000


def computed(component: Component, trace: Trace) -> Computed:
    """Return the one-way rule of COMPONENT.

    Raises:
        UnsupportedError: a program has no such primitive, or would be too long.
    """
    family = _family(component, trace)
    if family is not None:
        return family
    program = _program(
        component.sources, [trace.outputs[name] for name in component.targets], trace
    )
    left, right = (
        tuple(Term(Name((name,))) for name in names)
        for names in (component.sources, component.targets)
    )
    return Computed(left, right, program=program)


def _program(sources: Sequence[str], results: Sequence[str], trace: Trace) -> Program:
    """Return the steps from SOURCES to the arrays RESULTS."""
    names = Names(trace, sources, results)
    needed = above(trace, list(results))
    steps: list[Step] = []
    for constant in (array for array in trace.constants if array in needed):
        steps += constant_of(names, constant)
    for node in trace.nodes:
        if any(output[0] in needed for output in node["outputs"]):
            steps.append(step_of(node, names.of(node, needed)))
    steps += names.copies()
    if len(steps) > MOST_STEPS:
        raise UnsupportedError(f"its program has {len(steps)} steps; {MOST_STEPS} are the most")
    return Program(tuple(steps))


class Names:
    """What the arrays of a trace are called in a program."""

    def __init__(self, trace: Trace, sources: Sequence[str], results: Sequence[str]) -> None:
        self.trace, self.results = trace, results
        self.names = {trace.inputs[name]: f"#{at}" for at, name in enumerate(sources)}
        for at, array in enumerate(results):
            self.names.setdefault(array, f"${at}")
        self.fresh = (_letters(number) for number in count())

    def of(self, node: Node, needed: set[str]) -> Mapping[Any, str]:
        """Return the names of what NODE takes and makes."""
        for output in node["outputs"]:
            if output[0] in needed and output[0] not in self.names:
                self.names[output[0]] = next(self.fresh)
        return self.names

    def copies(self) -> list[Step]:
        """Return the steps that make results which are sources, or other results, once more."""
        return [
            Step((f"${at}",), "Copy", (self.names[array],))
            for at, array in enumerate(self.results)
            if self.names[array] != f"${at}"
        ]


def constant_of(names: Names, array: str) -> list[Step]:
    """Return the steps that make the constant ARRAY of a trace."""
    name = names.names.setdefault(array, next(names.fresh))
    return _constant(name, names.trace.constants[array])


def _constant(name: str, value: np.ndarray[Any, Any]) -> list[Step]:
    """Return the steps that make a constant; runs of equal numbers are not written out."""
    if value.size <= LONGEST:
        return list(constant_steps(name, value))
    flat = value.reshape(-1)
    raw = flat.view(np.dtype(f"u{flat.dtype.itemsize}"))
    ends = [*(np.flatnonzero(raw[1:] != raw[:-1]) + 1).tolist(), flat.size]
    if len(ends) > LONGEST:
        raise UnsupportedError(f"its program has a constant of {value.size} numbers")
    steps: list[Step] = []
    for at, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        steps += constant_steps(f"{name}_{at}", flat[start : start + 1])
        steps.append(Step((f"{name}_run{at}",), "Broadcast", (f"{name}_{at}",), ((stop - start,),)))
    runs = tuple(f"{name}_run{at}" for at in range(len(ends)))
    whole = f"{name}_flat" if value.ndim != 1 else name
    steps.append(Step((whole,), "Concatenate", runs, (0,)))
    if value.ndim != 1:
        steps.append(Step((name,), "Reshape", (whole,), (tuple(value.shape),)))
    return steps


def _letters(number: int) -> str:
    """Return a, b ... z, aa, ab ... for 0, 1 ..."""
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(ord("a") + digit) + text
    return text if text != "as" else "as_"


class Member(NamedTuple):
    """What one index of a family is made of: an array per target, and its sources."""

    results: tuple[str, ...]
    sources: tuple[str, ...]


def _family(component: Component, trace: Trace) -> Computed | None:
    """Return the rule of targets that stack what is computed of each member of a family alike."""
    stacks = [_stacked(trace, trace.outputs[name]) for name in component.targets]
    sizes = {len(stack) for stack in stacks if stack}
    if not all(stacks) or len(sizes) != 1 or sizes == {1}:
        return None
    left = tensors(component.sources, trace.headers, FAMILY)
    if any(len(tensor.members) not in sizes for tensor in left):
        return None
    programs = set()
    [size] = sizes
    for index in range(size):
        sources = [tensor.members[index] for tensor in left]
        results = [stack[index] for stack in stacks]
        found = above(trace, results) & trace.names.keys()
        if {trace.names[array] for array in found} != set(sources):
            return None
        programs.add(_program(sources, results, trace))
        if len(programs) > 1:
            return None
    right = tuple(Term(Name((name,))) for name in component.targets)
    where = (Definition((FAMILY,), Literal(size)),)
    return Computed(tuple(Term(t.name) for t in left), right, where, program=programs.pop())


def _stacked(trace: Trace, array: str) -> list[str]:
    """Return the arrays that ARRAY stacks along a new first axis, none if it does not."""
    node = trace.makers.get(array)
    if node is None or node["name"] != "Concatenate" or node["arguments"] != [0]:
        return []
    found = []
    for operand in node["inputs"]:
        maker = trace.makers.get(operand[0])
        if maker is None or maker["name"] not in ("ExpandDims", "Reshape"):
            return []
        inner = maker["inputs"][0]
        if tuple(operand[1]) != (1, *inner[1]) or prod(operand[1]) != prod(inner[1]):
            return []
        found.append(inner[0])
    return found


def is_copied(component: Component) -> Iterable[str]:
    """Yield the targets that are whole copies of an earlier one."""
    seen: set[object] = set()
    for name, form in zip(component.targets, component.forms, strict=True):
        if form is not None and (form.shape, form.pieces) in seen:
            yield name
        elif form is not None:
            seen.add((form.shape, form.pieces))
