"""A graph without what torch does not need: broadcasts before operations that broadcast themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from .graph import Graph, Node, Shape


def simplified(graph: Graph, broadcasting: Collection[str]) -> Graph:
    """Return GRAPH without broadcasts that nothing needs; operations BROADCASTING make their own."""
    sources = {it.outputs[0]: it.inputs[0] for it in graph.nodes if it.op == "Broadcast"}
    nodes = [
        _direct(node, sources, graph) if node.op in broadcasting else node for node in graph.nodes
    ]
    return without_unused(replace(graph, nodes=tuple(nodes)))


def without_unused(graph: Graph) -> Graph:
    """Return GRAPH without nodes that reach no output."""
    needed, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    constants = {value: it for value, it in graph.constants.items() if value in needed}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def _direct(node: Node, sources: dict[int, int], graph: Graph) -> Node:
    """Return NODE on what is broadcast for it, where that gives the same shape."""
    inputs = tuple(sources.get(value, value) for value in node.inputs)
    shape = common_shape([graph.shapes[value] for value in inputs])
    return node._replace(inputs=inputs) if shape == graph.shapes[node.outputs[0]] else node


def common_shape(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that SHAPES broadcast to; ``None`` if nothing says that they do.

    >>> common_shape([(4, 1), (3,)]), common_shape([(2,), (3,)])
    ((4, 3), None)
    """
    rank = max(map(len, shapes))
    found = []
    for sizes in zip(*[(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes], strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            return None
        found.append(wide.pop() if wide else 1)
    return tuple(found)
