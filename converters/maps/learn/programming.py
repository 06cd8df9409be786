"""The rule of a component that no layout explains: a program, made of the nodes of its trace."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from ....errors import UnsupportedError
from ..computed import Computed
from ..expressions import Definition, Literal
from ..names import Name
from ..rules import Term
from .components import Component, above
from .drafting import FAMILY
from .families import Tensor, tensors
from .opaque import Node
from .recording import Trace
from .steps import program

MOST_STEPS: Final = 2000


def computed(component: Component, trace: Trace) -> Computed:
    """Return the one-way rule of COMPONENT.

    Raises:
        UnsupportedError: a program has no such primitive, or would be too long.
    """
    made = _family(component, trace) or _plain(component, trace)
    if len(made.program.steps) > MOST_STEPS:
        count = len(made.program.steps)
        raise UnsupportedError(
            f"{component.targets[0]} is computed in {count} steps; {MOST_STEPS} are the most"
        )
    return made


def _plain(component: Component, trace: Trace) -> Computed:
    results = [trace.outputs[name] for name in component.targets]
    left, right = (
        tuple(Term(Name((name,))) for name in names)
        for names in (component.sources, component.targets)
    )
    return Computed(left, right, program=program(trace, component.sources, results))


def _family(component: Component, trace: Trace) -> Computed | None:
    """Return the rule of targets that stack what is computed of each member of a family alike."""
    stacks = [stacked(trace, trace.outputs[name]) for name in component.targets]
    [size, *others] = {len(stack) for stack in stacks}
    if size < 2 or others:
        return None
    left = tensors(component.sources, trace.headers, FAMILY)
    if any(len(tensor.members) != size for tensor in left):
        return None
    if not _alike(left, stacks, trace):
        return None
    sources = [tensor.members[0] for tensor in left]
    steps = program(trace, sources, [stack[0] for stack in stacks])
    right = tuple(Term(Name((name,))) for name in component.targets)
    where = (Definition((FAMILY,), Literal(size)),)
    return Computed(tuple(Term(tensor.name) for tensor in left), right, where, program=steps)


def _alike(left: list[Tensor], stacks: list[list[str]], trace: Trace) -> bool:
    """Return whether each index of STACKS is made of its own index of LEFT, and all alike."""
    heads = [trace.inputs[tensor.members[0]] for tensor in left]
    first = [stack[0] for stack in stacks]
    if above(trace, first) & trace.names.keys() != set(heads):
        return False
    for index in range(1, len(stacks[0])):
        others = {trace.inputs[tensor.members[index]] for tensor in left}
        own = dict(zip(heads, (trace.inputs[t.members[index]] for t in left), strict=True))
        pairs = [(stack[0], stack[index]) for stack in stacks]
        if len(others) < len(heads) or not _same(trace, pairs, own):
            return False
    return True


def _same(trace: Trace, pairs: list[tuple[str, str]], known: dict[str, str]) -> bool:
    """Return whether the arrays in PAIRS are made alike, if KNOWN inputs stand for each other."""
    while pairs:
        one, other = pairs.pop()
        if one in known or one not in trace.makers or other not in trace.makers:
            if known.get(one, one) != other:
                return False
            continue
        known[one] = other
        a, b = trace.makers[one], trace.makers[other]
        if _what(a) != _what(b) or _place(a, one) != _place(b, other):
            return False
        pairs += [(x[0], y[0]) for x, y in zip(a["inputs"], b["inputs"], strict=True)]
    return True


def _what(node: Node) -> tuple[object, ...]:
    shapes = [array[1:] for array in (*node["inputs"], *node["outputs"])]
    return node["name"], node["arguments"], shapes


def _place(node: Node, array: str) -> int:
    return [output[0] for output in node["outputs"]].index(array)


def stacked(trace: Trace, array: str) -> list[str]:
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


def copied(component: Component) -> Iterator[str]:
    """Yield the targets that are whole copies of an earlier one."""
    seen: set[object] = set()
    for name, form in zip(component.targets, component.forms, strict=True):
        if form is not None and (form.shape, form.pieces) in seen:
            yield name
        elif form is not None:
            seen.add((form.shape, form.pieces))
