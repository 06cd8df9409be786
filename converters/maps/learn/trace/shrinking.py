"""Replay a part of a trace on smaller tensors, to compare values without holding real sizes.

Most axes of a checkpoint are only carried along: no node cuts, merges or looks into them. Whatever
the trace does, it does alike at every index of such an axis, so a few indices show it all. Every
other axis keeps its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final, TypeAlias

from ....checkpoints.base import Header
from ...programs.programs import replay
from ..rules.steps import nodes_of, program
from .components import Groups, above
from .normal import RESHAPES
from .opaque import Node
from .recording import Trace

Array: TypeAlias = tuple[str, tuple[int, ...], Any]  # id, shape and dtype, as MLX reports them
SMALL: Final = (3, 5, 7, 2)  # sizes of the axes that are carried along, in turn
ALIKE: Final = frozenset(
    {"Add", "AsType", "Copy", "Full", "Multiply", "Negative", "StopGradient", "Subtract"}
)


class Excerpt:
    """The part of a trace that makes some outputs.

    Attributes:
        sources: names of the inputs that it needs.
        headers: their headers, smaller where an axis is only carried along.
    """

    def __init__(self, trace: Trace, targets: Sequence[str], shrink: bool = True) -> None:
        self.trace, self.targets = trace, list(targets)
        self.results = [trace.outputs[name] for name in targets]
        self.needed = above(trace, self.results)
        self.nodes = nodes_of(trace, self.needed)
        self.sources = tuple(n for n, array in trace.inputs.items() if array in self.needed)
        self.sizes = sizes_of(trace, self.nodes, self.sources) if shrink else {}
        self.headers = {
            name: Header(header.dtype, self.shape(trace.inputs[name], header.shape))
            for name, header in trace.headers.items()
            if trace.inputs[name] in self.needed
        }

    def shape(self, array: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the SHAPE of an array as it is here."""
        return tuple(self.sizes.get((array, at), size) for at, size in enumerate(shape))

    def replay(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the targets that the trace makes of MLX ARRAYS, by name."""
        steps = program(self.trace, self.sources, self.results, self.resized)
        made = replay(steps, [arrays[name] for name in self.sources])
        return dict(zip(self.targets, made, strict=True))

    def resized(self, node: Node) -> Node:
        """Return NODE with the sizes that its arrays have here."""
        if not self.sizes:
            return node
        [first, *_] = node["outputs"]
        shape = self.shape(first[0], first[1])
        if node["name"] in RESHAPES:
            output = (first[0], shape, first[2])
            return {**node, "name": "Reshape", "arguments": [shape], "outputs": [output]}
        if node["name"] == "Broadcast":
            return {**node, "arguments": [shape]}
        if node["name"] == "Slice":
            return {**node, "arguments": self.slices(node)}
        return node

    def slices(self, node: Node) -> list[tuple[int, ...]]:
        """Return the bounds of a slice: all of an axis that is carried along."""
        array = node["inputs"][0][0]
        bounds = zip(*node["arguments"], strict=True)
        found = [
            (0, self.sizes[array, at], 1) if (array, at) in self.sizes else bound
            for at, bound in enumerate(bounds)
        ]
        return [tuple(column) for column in zip(*found, strict=True)]


Axis: TypeAlias = tuple[str, int]


class Axes:
    """Which axes of a trace are the same axis, and which must keep their size."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.fixed: set[Axis] = set()

    def same(self, one: Axis, other: Axis) -> None:
        """Note that two axes are carried along as one."""
        self.groups.unite(_key(one), _key(other))

    def fix(self, array: Array, axes: Sequence[int] | None = None) -> None:
        """Note that AXES of ARRAY keep their size, by default all."""
        chosen = range(len(array[1])) if axes is None else axes
        self.fixed |= {(array[0], axis) for axis in chosen}

    def match(self, one: Array, other: Array, but: Sequence[int] = ()) -> None:
        """Note that all axes of two arrays are the same, those in BUT excepted, which stay."""
        for axis, (a, b) in enumerate(zip(one[1], other[1], strict=True)):
            if axis in but or a != b:
                self.fix(one, [axis])
                self.fix(other, [axis])
            else:
                self.same((one[0], axis), (other[0], axis))


def _key(axis: Axis) -> str:
    return f"{axis[0]}:{axis[1]}"


def sizes_of(trace: Trace, nodes: Sequence[Node], sources: Sequence[str]) -> dict[Axis, int]:
    """Return a small size for every axis that NODES only carry along."""
    axes = Axes()
    arrays: dict[str, Array] = {}
    for name in sources:
        array = trace.inputs[name]
        arrays[array] = (array, trace.headers[name].shape, None)
    for node in nodes:
        arrays |= {array[0]: array for array in (*node["inputs"], *node["outputs"])}
        RULES.get(node["name"], _fix_all)(axes, node)
    for array in trace.constants.keys() & arrays.keys():
        axes.fix(arrays[array])
    fixed = {axes.groups.find(_key(axis)) for axis in axes.fixed}
    chosen: dict[str, int] = {}
    found: dict[Axis, int] = {}
    for array, shape, _ in arrays.values():
        for at, size in enumerate(shape):
            group = axes.groups.find(_key((array, at)))
            if group not in fixed and size > max(SMALL):
                found[array, at] = chosen.setdefault(group, SMALL[len(chosen) % len(SMALL)])
    return found


def _fix_all(axes: Axes, node: Node) -> None:
    for array in (*node["inputs"], *node["outputs"]):
        axes.fix(array)


def _alike(axes: Axes, node: Node) -> None:
    [output] = node["outputs"]
    for operand in node["inputs"]:
        if len(operand[1]) == len(output[1]):
            axes.match(operand, output)
        else:
            axes.fix(operand)


def _transpose(axes: Axes, node: Node) -> None:
    [operand], [output] = node["inputs"], node["outputs"]
    for at, axis in enumerate(node["arguments"][0]):
        axes.same((operand[0], axis), (output[0], at))


def _reshape(axes: Axes, node: Node) -> None:
    [operand], [output] = node["inputs"], node["outputs"]
    for old, new in groups(operand[1], output[1]):
        if len(old) == len(new) == 1:
            axes.same((operand[0], old[0]), (output[0], new[0]))
        else:
            axes.fix(operand, old)
            axes.fix(output, new)


def groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield which axes of the shape OLD become which of NEW; axes of size 1 belong to none.

    >>> list(groups((6, 1, 5), (2, 3, 5)))
    [([0], [0, 1]), ([2], [2])]
    """
    left = [axis for axis, size in enumerate(old) if size != 1]
    right = [axis for axis, size in enumerate(new) if size != 1]
    while left or right:
        a, b = left[:1], right[:1]
        left, right = left[1:], right[1:]
        while (x := prod(old[i] for i in a)) != (y := prod(new[i] for i in b)):
            grow = (a, left) if x < y else (b, right)
            grow[0].append(grow[1].pop(0))
        yield a, b


def _slice(axes: Axes, node: Node) -> None:
    [operand], [output] = node["inputs"], node["outputs"]
    cut = [
        axis
        for axis, (size, bounds) in enumerate(
            zip(operand[1], zip(*node["arguments"], strict=True), strict=True)
        )
        if slice(*bounds).indices(size) != (0, size, 1)
    ]
    axes.match(operand, output, cut)


def _split(axes: Axes, node: Node) -> None:
    for output in node["outputs"]:
        axes.match(node["inputs"][0], output, [node["arguments"][1]])


def _concatenate(axes: Axes, node: Node) -> None:
    for operand in node["inputs"]:
        axes.match(operand, node["outputs"][0], [node["arguments"][0]])


def _view(axes: Axes, node: Node) -> None:
    [operand], [output] = node["inputs"], node["outputs"]
    axes.match(operand, output, [len(output[1]) - 1])


def _broadcast(axes: Axes, node: Node) -> None:
    [operand], [output] = node["inputs"], node["outputs"]
    if len(operand[1]) == len(output[1]):
        axes.match(operand, output)
    elif operand[1]:
        axes.fix(operand)
        axes.fix(output)


RULES: Final[Mapping[str, Callable[[Axes, Node], None]]] = {
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(ALIKE, _alike),
    "Broadcast": _broadcast,
    "Concatenate": _concatenate,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transpose,
    "View": _view,
}
