"""Traces of one function at several sizes made one graph, in which sizes are computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from ....errors import UnsupportedError
from .graph import Graph, Node
from .sizes import Fit, Size, resolved

CURE = "give an example of another size, or leave the size fixed"


def merged(graphs: Sequence[Graph], traced: Sequence[Mapping[str, int]]) -> Graph:
    """Return the graph that GRAPHS, traced at the sizes TRACED, are cases of.

    Raises:
        UnsupportedError: they differ in what they compute, or in a number that is no sum of products
            of the sizes.
    """
    for other, sizes in zip(graphs[1:], traced[1:], strict=True):
        _require_alike(graphs[0], other, f"{at(traced[0])} and at {at(sizes)}")
    return _Merger(graphs, traced).graph()


def fits_traced(graph: Graph, whole: Graph, sizes: Mapping[str, int]) -> bool:
    """Say whether GRAPH, traced at SIZES, is a case of WHOLE, which ``merged`` has made."""
    nodes = [it for it in whole.nodes if it.op != "Number"]
    if [it[::2] for it in graph.nodes] != [
        it[::2] for it in nodes
    ] or graph.outputs != whole.outputs:
        return False
    read = {
        name: graph.shapes[value][axis]
        for value, axes in whole.observed.items()
        for axis, name in axes.items()
    }
    known = {**sizes, **read}
    return (
        [resolved(it.arguments, known) for it in nodes]
        == [list(it.arguments) for it in graph.nodes]
        and all(resolved(it, known) == list(graph.shapes[key]) for key, it in whole.shapes.items())
        and all(
            mx.array_equal(it, graph.constants[key], equal_nan=True)
            for key, it in whole.constants.items()
        )
        and all(_is_number(it, graph, known) for it in whole.nodes if it.op == "Number")
    )


def _is_number(node: Node, graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Say whether the constant that NODE makes from SIZES is that of GRAPH."""
    (size, inverse), wanted = node.arguments, graph.constants[node.outputs[0]].item()
    number = resolved(size, sizes)
    return math.isclose(1 / number if inverse and number else number, wanted, rel_tol=1e-6)


def at(sizes: Mapping[str, int]) -> str:
    """Return SIZES as a message says them."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _require_alike(one: Graph, other: Graph, where: str) -> None:
    for mine, its in zip(one.nodes, other.nodes, strict=False):
        if (mine.op, mine.inputs) != (its.op, its.inputs):
            raise UnsupportedError(
                f"the module computes different things at {where}"
                f" ({mine.op} in one, {its.op} in the other): {CURE}"
            )
    if len(one.nodes) != len(other.nodes) or one.outputs != other.outputs:
        counts = f"{len(one.nodes)} and {len(other.nodes)} primitives"
        raise UnsupportedError(
            f"the module computes different things at {where} ({counts}): {CURE}"
        )


class _Merger:
    """Compares graphs that have the same nodes."""

    def __init__(self, graphs: Sequence[Graph], traced: Sequence[Mapping[str, int]]) -> None:
        self.graphs, self.first, self.fit = graphs, graphs[0], Fit(traced)
        self.places = " / ".join(map(at, traced))
        self.shapes: dict[int, tuple[Any, ...]] = {}
        self.observed: dict[int, dict[int, str]] = {}
        self.compared: set[int] = set()

    def graph(self) -> Graph:
        """Return the common graph."""
        for value in self.first.shapes.keys() - {v for n in self.first.nodes for v in n.outputs}:
            self._shape(value)
        nodes: list[Node] = []
        for place, node in enumerate(self.first.nodes):
            nodes += self._numbers(node.inputs)
            nodes.append(self._node(place))
        nodes += self._numbers(self.first.outputs)
        made = {value for node in nodes for value in node.outputs}
        kept = {value: it for value, it in self.first.constants.items() if value not in made}
        return replace(
            self.first,
            constants=kept,
            nodes=tuple(nodes),
            shapes=self.shapes,
            observed=self.observed,
        )

    def _node(self, place: int) -> Node:
        same = [graph.nodes[place] for graph in self.graphs]
        arguments = self._argument([list(node.arguments) for node in same], same[0].op)
        for value in same[0].outputs:
            self._shape(value)
        return same[0]._replace(arguments=arguments)

    def _argument(self, values: Sequence[Any], op: str) -> Any:
        first = values[0]
        if isinstance(first, list) and all(len(it) == len(first) for it in values):
            return [self._argument(list(its), op) for its in zip(*values, strict=True)]
        if all(it == first for it in values):
            return first
        found = self.fit([int(it) for it in values]) if _whole(values) else None
        if found is None:
            raise UnsupportedError(
                f"{op} is called with {' / '.join(map(str, values))} at {self.places}, which are no"
                f" sums or products of the sizes: {CURE}"
            )
        return found

    def _shape(self, value: int) -> None:
        shapes = [graph.shapes[value] for graph in self.graphs]
        self.shapes[value] = tuple(
            self._size(value, axis, sizes) for axis, sizes in enumerate(zip(*shapes, strict=True))
        )

    def _size(self, value: int, axis: int, sizes: Sequence[int]) -> int | Size:
        """Return the size of an axis; one that follows from no other is read from the tensor."""
        found = self.fit(sizes)
        if found is not None:
            return found
        name = f"{value}.{axis}"
        self.fit.observe(name, sizes)
        self.observed.setdefault(value, {})[axis] = name
        return Size(((1, (name,)),))

    def _numbers(self, values: Sequence[int]) -> list[Node]:
        """Return what makes those of VALUES that are constants made from sizes, once each."""
        fresh = [it for it in values if it in self.first.constants and it not in self.compared]
        self.compared.update(fresh)
        return [node for value in dict.fromkeys(fresh) if (node := self._number(value))]

    def _number(self, value: int) -> Node | None:
        """Return what makes the constant VALUE where it is made from sizes, such as 1 / length."""
        arrays = [graph.constants[value] for graph in self.graphs]
        first = arrays[0]
        if all(bool(mx.array_equal(it, first, equal_nan=True)) for it in arrays[1:]):
            return None
        numbers = [it.item() for it in arrays] if first.ndim == 0 else []
        for inverse in (False, True):
            wanted = [1 / it for it in numbers if it] if inverse else numbers
            whole = [round(it) for it in wanted]
            close = all(abs(a - b) <= 1e-6 * abs(a) for a, b in zip(wanted, whole, strict=True))
            if len(wanted) == len(arrays) and close and (size := self.fit(whole)) is not None:
                return Node("Number", [size, inverse], (), (value,))
        shapes = [list(it.shape) for it in arrays]
        raise UnsupportedError(
            f"a constant of shape {shapes[0]} differs at {self.places}: it is made from a size outside"
            f" of MLX; {CURE}"
        )


def _whole(values: Sequence[Any]) -> bool:
    return all(isinstance(it, int | float) and it == int(it) for it in values)
