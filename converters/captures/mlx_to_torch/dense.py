"""Quantized weights of a graph made dense: every weight once, at the values that its codes stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from .graph import Graph, Node
from .operations.quantized import MODES, dequantize
from .simplifying import without_unused

Tensors = dict[str, Tensor]


def dense(graph: Graph, tensors: Mapping[str, Tensor]) -> tuple[Graph, Tensors]:
    """Return GRAPH and its TENSORS without codes, scales and biases; what uses them is an ordinary product.

    A weight keeps its name. What is dequantized from anything but parameters stays as it is.
    """
    return _Dense(graph, tensors).made()


class _Dense:
    """Rewrites the nodes of a graph one by one."""

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
        self.graph, self.tensors = graph, dict(tensors)
        self.shapes, self.dtypes = dict(graph.shapes), dict(graph.dtypes)
        self.makers = {value: node for node in graph.nodes for value in node.outputs}
        self.nodes: list[Node] = []
        self.same: dict[int, int] = {}  # value -> the dense one that it is
        self.weights: set[int] = set()

    def made(self) -> tuple[Graph, Tensors]:
        """Return the whole."""
        for node in self.graph.nodes:
            self.nodes += self._rewritten(node)
        outputs = tuple(self.same.get(it, it) for it in self.graph.outputs)
        changed = replace(
            self.graph,
            nodes=tuple(self._chosen(node) for node in self.nodes),
            outputs=outputs,
            shapes=self.shapes,
            dtypes=self.dtypes,
        )
        whole = without_unused(changed)
        uses = whole.uses()
        named = {value: name for value, name in whole.parameters.items() if value in uses}
        return replace(whole, parameters=named), {it: self.tensors[it] for it in named.values()}

    def _rewritten(self, node: Node) -> list[Node]:
        inputs = tuple(self.same.get(it, it) for it in node.inputs)
        if node.op in ("QuantizedMatmul", "GatherQMM"):
            others = 2 if node.op == "GatherQMM" else 0
            parts = node.inputs[1 : len(node.inputs) - others]
            group, bits, mode, turned = node.arguments[:4]
            if self._weight(parts, [group, bits, MODES[mode]]):
                return self._product(node._replace(inputs=inputs), parts[0], turned, others)
        if node.op == "Dequantize" and (found := self._looked_up(node)) is not None:
            self.same[node.outputs[0]] = found
            return []
        return [node._replace(inputs=inputs)]

    def _product(self, node: Node, weight: int, turned: bool, others: int) -> list[Node]:
        """Return the product of NODE with the dense WEIGHT."""
        last = node.inputs[len(node.inputs) - others :]
        op = "GatherMM" if others else "Matmul"
        arguments = node.arguments[4:]
        if not turned:
            return [Node(op, arguments, (node.inputs[0], weight, *last), node.outputs)]
        shape = self.shapes[weight]
        axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        value = max(self.shapes) + 1
        self.shapes[value] = tuple(shape[axis] for axis in axes)
        self.dtypes[value] = self.dtypes[weight]
        turn = Node("Transpose", [axes], (weight,), (value,))
        return [turn, Node(op, arguments, (node.inputs[0], value, *last), node.outputs)]

    def _looked_up(self, node: Node) -> int | None:
        """Return the dense value that NODE dequantizes: a weight, or rows that are read from one."""
        sources = [self._source(value) for value in node.inputs]
        if any(it is None for it in sources):
            return None
        parts = [it[0] for it in sources if it]
        if not self._weight(parts, node.arguments):
            return None
        return self._dense_rows(node, self.shapes[parts[0]][-1])

    def _source(self, value: int) -> tuple[int, int] | None:
        """Return the parameter whose rows VALUE is, and how many steps are between."""
        for steps in range(3):
            if value in self.graph.parameters:
                return value, steps
            node = self.makers.get(value)
            if node is None or node.op not in ("Gather", "Squeeze"):
                return None
            value = node.inputs[0]
        return None

    def _dense_rows(self, dequantize: Node, columns: Any) -> int:
        """Give the codes of DEQUANTIZE, and the steps that lead to them, dense COLUMNS; return them."""
        value = at = dequantize.inputs[0]
        made = self.dtypes[dequantize.outputs[0]]
        if dequantize.arguments[2] != "affine":
            made = "float32"  # numbers so short that bfloat16, MLX's choice, holds them as well
        while at in self.makers:
            self.shapes[at] = (*self.shapes[at][:-1], columns)
            self.dtypes[at] = made
            node = self.makers[at]
            if node.op == "Gather":
                axes, sizes = node.arguments
                wide = node._replace(arguments=[axes, [*sizes[:-1], columns]])
                self.nodes[self.nodes.index(self._chosen(node))] = wide
            at = node.inputs[0]
        return value

    def _chosen(self, node: Node) -> Node:
        return node._replace(inputs=tuple(self.same.get(it, it) for it in node.inputs))

    def _weight(self, parts: Any, form: Any) -> bool:
        """Make the weight dense whose PARTS are parameters, once; say whether they are."""
        names = [self.graph.parameters.get(value) for value in parts]
        if None in names:
            return False
        first = parts[0]
        if first not in self.weights:
            made = dequantize([self.tensors[str(name)] for name in names], form)
            self.tensors[str(names[0])] = nn.Parameter(made, requires_grad=False)
            self.shapes[first] = tuple(made.shape)
            self.dtypes[first] = str(made.dtype).removeprefix("torch.")
            self.weights.add(first)
        return True
