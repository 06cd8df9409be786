"""The rule of a component that no layout explains: a program, made of the nodes of its trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import Final

from .....errors import UnsupportedError
from ...notation.expressions import Definition, Literal
from ...notation.names import Name
from ...notation.rules import Term
from ...programs.computed import Computed
from ...programs.programs import Program
from ..trace.components import Component, above
from ..trace.opaque import Node
from ..trace.recording import Trace
from .drafting import FAMILY
from .families import Tensor, slots, tensors
from .steps import program

MOST_STEPS: Final = 2000


class Programs:
    """The programs of a trace; what is computed as something else was has the same program."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.known: dict[object, list[tuple[list[str], list[str], Program]]] = defaultdict(list)

    def rule(self, component: Component) -> Computed:
        """Return the one-way rule of COMPONENT.

        Raises:
            UnsupportedError: a program has no such primitive, or would be too long.
        """
        made = self.family(component) or self.plain(component)
        if len(made.program.steps) > MOST_STEPS:
            count = len(made.program.steps)
            raise UnsupportedError(
                f"{component.targets[0]} is computed in {count} steps; {MOST_STEPS} are the most"
            )
        return made

    def plain(self, component: Component) -> Computed:
        """Return the rule of a component that is no family."""
        results = [self.trace.outputs[name] for name in component.targets]
        left, right = (
            tuple(Term(Name((name,))) for name in names)
            for names in (component.sources, component.targets)
        )
        return Computed(left, right, program=self.program(list(component.sources), results))

    def family(self, component: Component) -> Computed | None:
        """Return the rule of targets that stack what is computed of each member of a family alike."""
        stacks = [stacked(self.trace, self.trace.outputs[name]) for name in component.targets]
        [size, *others] = {len(stack) for stack in stacks}
        if size < 2 or others:
            return None
        left = tensors(component.sources, self.trace.headers, FAMILY)
        if any(len(tensor.members) != size for tensor in left):
            return None
        if not _alike(left, stacks, self.trace):
            return None
        sources = [tensor.members[0] for tensor in left]
        steps = self.program(sources, [stack[0] for stack in stacks])
        right = tuple(Term(Name((name,))) for name in component.targets)
        where = (Definition((FAMILY,), Literal(size)),)
        return Computed(tuple(Term(tensor.name) for tensor in left), right, where, program=steps)

    def program(self, sources: list[str], results: list[str]) -> Program:
        """Return the program from SOURCES to the arrays RESULTS."""
        inputs = [self.trace.inputs[name] for name in sources]
        key = tuple(slots(name)[0] for name in sources)
        for others, made, steps in self.known[key]:
            pairs = list(zip(made, results, strict=False))
            if len(made) == len(results) and _same(
                self.trace, pairs, dict(zip(others, inputs, strict=True))
            ):
                return steps
        steps = program(self.trace, sources, results)
        self.known[key].append((inputs, results, steps))
        return steps


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
