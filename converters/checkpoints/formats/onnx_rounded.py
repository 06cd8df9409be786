"""ONNX graphs that round what their layers take to 8 bits, turned into the same without that rounding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...values import Array

QUANTIZED: Final = "_quantized"  # what onnxruntime's quantizer appends to the name of a weight
INTEGER: Final = "MatMulInteger"
# The least inputs and outputs of the kinds that are looked at.
NEEDED: Final[Mapping[str, tuple[int, int]]] = {
    "Cast": (1, 1),
    "DequantizeLinear": (2, 1),
    "DynamicQuantizeLinear": (1, 3),
    "Gather": (2, 1),
    INTEGER: (2, 1),
    "Mul": (2, 1),
    "QuantizeLinear": (2, 1),
}
Read = Callable[[str], Array]


class Rounded(NamedTuple):
    """A value that a graph rounds to 8 bits.

    Attributes:
        value: its name.
        step: what its codes lie apart; 0 where each run finds its own.
        below: how many codes there are below that of zero.
        above: how many above.
    """

    value: str
    step: float = 0.0
    below: int = 0
    above: int = 0


def without_rounding(graph: Any, constants: Collection[str], read: Read) -> tuple[Rounded, ...]:
    """Let GRAPH compute without rounding what layers take, in place, and return what it rounded.

    Weights on codes are ``DequantizeLinear`` then, whatever they were: codes of theirs that are looked up, or
    multiplied as whole numbers. What is rounded in other ways stays.

    Args:
        graph: of an ONNX model.
        constants: its initializers; those that nothing reads any more go as well.
        read: gives their values.
    """
    plain = Plain(graph, constants, read)
    found = [*plain.in_pairs(), *plain.by_each_run()] + [None] * plain.looked_up()
    if found:
        plain.write()
    return tuple(it for it in found if it is not None)


def graphs(graph: Any) -> Iterator[Any]:
    """Yield GRAPH and those inside its nodes, such as the branches of an ``If``."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(inner)


def complete(node: Any) -> bool:
    """Say whether NODE has the inputs and outputs that its kind needs; no runtime takes it else."""
    inputs, outputs = NEEDED.get(node.op_type, (0, 0))
    return len(node.input) >= inputs and len(node.output) >= outputs


class Plain:
    """A graph on its way to one that does not round."""

    def __init__(self, graph: Any, constants: Collection[str], read: Read) -> None:
        self.graph, self.constants, self.read = graph, constants, read
        self.nodes = [node for node in graph.node if complete(node)]
        self.made = {name: node for node in self.nodes for name in node.output}
        self.outputs = {it.name for it in graph.output}
        self.readers: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.gone: set[int] = set()  # ids of nodes
        self.instead: dict[int, list[Any]] = {}  # id of a node -> those in its place
        self.same: dict[str, str] = {}  # value -> what it was before it was rounded
        self.numbers: dict[tuple[str, ...], str] = {}  # codes and their grid -> the weight of them

    def in_pairs(self) -> Iterator[Rounded]:
        """Yield what ``QuantizeLinear`` rounds and ``DequantizeLinear`` alone reads, and take both out."""
        for node in self.nodes:
            if node.op_type != "QuantizeLinear" or not self._constant(node.input[1:]):
                continue
            value, *grid = node.input
            readers, step = self._readers(node.output[0]), self.read(grid[0])
            alike = (it.op_type == "DequantizeLinear" and [*it.input[1:]] == grid for it in readers)
            zero = self.read(grid[1]) if grid[1:] and grid[1] else np.zeros(1, np.uint8)
            whole = zero.dtype.kind in "iu" and zero.size == step.size == 1  # float8 has no ends
            if whole and all(alike) and node.output[0] not in self.outputs:
                for it in readers:
                    self._pass_on(it, value)
                self.gone |= {id(node), *map(id, readers)}
                ends, middle = np.iinfo(zero.dtype), int(zero.reshape(-1)[0])
                yield Rounded(
                    value, float(step.reshape(-1)[0]), middle - ends.min, ends.max - middle
                )

    def by_each_run(self) -> Iterator[Rounded]:
        """Yield what ``DynamicQuantizeLinear`` rounds for products of whole numbers, and make these plain products."""
        for node in self.nodes:
            if node.op_type != "DynamicQuantizeLinear":
                continue
            chains = [self._product(it, node) for it in self._readers(node.output[0])]
            if chains and all(chains):
                self.gone.add(id(node))
                for chain in chains:
                    self._plain_product(chain, node.input[0])
                yield Rounded(node.input[0])

    def looked_up(self) -> int:
        """Let codes that are looked up become numbers before that; return how many tables there are."""
        found = 0
        for node in self.nodes:
            table = self.made.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
            if table is None or table.op_type != "Gather" or not self._constant(node.input[1:]):
                continue
            codes, ids = table.input
            if self._alone(table) and codes in self.constants:
                name, made = self._dequantized(codes, node.input[1:])
                table.input[:], table.output[:] = [name, ids], [*node.output]
                self.instead[id(table)] = [*made, table]
                self.gone.add(id(node))
                found += 1
        return found

    def write(self) -> None:
        """Write what became of the nodes."""
        nodes = []
        for node in self.graph.node:
            fresh = [] if id(node) in self.gone else [node]
            nodes += self.instead.get(id(node), fresh)
        for node in nodes:
            node.input[:] = [self._before(name) for name in node.input]
        kept = [type(it).FromString(it.SerializeToString()) for it in nodes]
        del self.graph.node[:]
        self.graph.node.extend(kept)
        read = {name for inner in graphs(self.graph) for node in inner.node for name in node.input}
        weights = [it for it in self.graph.initializer if it.name in read | self.outputs]
        weights = [type(it).FromString(it.SerializeToString()) for it in weights]
        del self.graph.initializer[:]
        self.graph.initializer.extend(weights)

    def _product(self, node: Any, rounding: Any) -> list[Any]:
        """Return the nodes that make NODE, a product of whole numbers, one of what ROUNDING was given; or none."""
        if node.op_type != INTEGER or node.input[2:3] != rounding.output[2:3]:
            return []
        weight = [node.input[1], *node.input[3:4]]
        cast, product = self._next(node, "Cast"), None
        product = self._next(cast, "Mul") if cast is not None else None
        if product is None or not self._constant(weight):
            return []
        scales = self.made.get(next((it for it in product.input if it != cast.output[0]), ""))
        if scales is None or scales.op_type != "Mul" or rounding.output[1] not in scales.input:
            return []
        step = next((it for it in scales.input if it != rounding.output[1]), "")
        known = step in self.constants and self._alone(scales)
        return [node, cast, product, scales, step] if known else []

    def _plain_product(self, chain: list[Any], value: str) -> None:
        """Let a CHAIN that ``_product`` found multiply VALUE by the weight's numbers."""
        from onnx import helper

        node, cast, product, scales, step = chain
        name, made = self._dequantized(node.input[1], [step, *node.input[3:4]])
        plain = helper.make_node("MatMul", [value, name], [*product.output], node.name)
        plain.metadata_props.extend(node.metadata_props)
        self.gone |= {id(node), id(cast), id(scales)}
        self.instead[id(product)] = [*made, plain]

    def _next(self, node: Any, kind: str) -> Any:
        """Return the one node of KIND that reads what NODE gives; ``None`` where others do."""
        readers = self._readers(node.output[0])
        return readers[0] if self._alone(node) and readers[0].op_type == kind else None

    def _alone(self, node: Any) -> bool:
        """Say whether one node reads what NODE gives."""
        name = node.output[0]
        return len(self._readers(name)) == 1 and name not in self.outputs

    def _readers(self, name: str) -> list[Any]:
        return self.readers.get(name, [])

    def _constant(self, names: Sequence[str]) -> bool:
        return bool(names and names[0]) and all(it in self.constants for it in names if it)

    def _pass_on(self, node: Any, value: str) -> None:
        """Let what NODE gave be VALUE."""
        from onnx import helper

        name = node.output[0]
        if name in self.outputs:
            self.instead[id(node)] = [helper.make_node("Identity", [value], [name])]
        else:
            self.same[name] = value

    def _before(self, name: str) -> str:
        while name in self.same:
            name = self.same[name]
        return name

    def _dequantized(self, codes: str, grid: Sequence[str]) -> tuple[str, list[Any]]:
        """Return the name of the weight of CODES by GRID, its steps and zeros, and the node that makes it, once."""
        from onnx import helper

        if name := self.numbers.get((codes, *grid)):
            return name, []
        name = codes.removesuffix(QUANTIZED)
        name = f"{codes}/numbers" if name in self.constants or name in self.made else name
        self.numbers[(codes, *grid)] = name
        return name, [helper.make_node("DequantizeLinear", [codes, *grid], [name], axis=1)]
