"""Weights that an ONNX graph makes of codes before it computes: at the values that the codes stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.dtypes import CODE, FLOATS
from ...values import Array
from ..base import Header

OURS: Final = ("DequantizeLinear", "Reshape", "Add", "Reshape")  # onnx_export.codes
AT_ONCE: Final = 1 << 22  # numbers
STEPS: Final = frozenset({"DequantizeLinear", "Reshape", "Add", "Cast"})
Read = Callable[[str], Array]


class MadeWeight(NamedTuple):
    """A weight that nodes of a graph make of constants.

    Attributes:
        nodes: in the order in which they run.
        inside: the values between constants and weight.
    """

    nodes: tuple[Any, ...]
    inside: frozenset[str]

    @property
    def parts(self) -> frozenset[str]:
        """The constants that it is made of."""
        return frozenset(name for node in self.nodes for name in node.input if name) - self.inside

    @property
    def codes(self) -> str:
        """The constant with the codes; empty where there are several."""
        given = [it.input[0] for it in self.nodes if it.op_type == "DequantizeLinear"]
        return given[0] if len(given) == 1 else ""

    def header(self, constants: Mapping[str, Any], read: Read) -> Header | None:
        """Return its dtype and shape; ``None`` where it is no weight in floating point.

        Args:
            constants: of the file, with their shapes.
            read: gives their values, of which only small ones are asked for.
        """
        try:
            found = self._header(constants, read)
        except (IndexError, KeyError, TypeError, ValueError):  # a graph that does not fit together
            return None
        return found if found.dtype in FLOATS else None

    def _header(self, constants: Mapping[str, Any], read: Read) -> Header:
        known = {name: tuple(constants[name].dims) for name in self.parts}
        dtype = np.dtype(np.float32)
        for node in self.nodes:
            given = [known[name] for name in node.input if name]
            dtype = read(node.input[1]).dtype if node.op_type == "DequantizeLinear" else dtype
            dtype = _type_of(node) if node.op_type == "Cast" else dtype
            known[node.output[0]] = _shape(node, given, read)
        return Header(CODE[dtype], known[self.nodes[-1].output[0]])

    def values(self, read: Read) -> Array:
        """Return it as float32: worked out in float64, rounded once; of our exports some rows at a time."""
        held = {name: read(name) for name in self.parts}
        if not self._by_rows(held):
            return self._exact(held).astype(np.float32)
        codes = held[self.nodes[0].input[0]]
        blocks, shape = (node.input[1] for node in self.nodes if node.op_type == "Reshape")
        each = max(1, AT_ONCE // max(1, codes.shape[1]))
        pieces = [np.empty((0, codes.shape[1]), np.float32)]
        for start in range(0, len(codes), each):
            some = {name: it[start : start + each] for name, it in held.items()}
            count = min(each, len(codes) - start)
            some[blocks] = np.array([count, *held[blocks][1:]])
            some[shape] = np.array([count, codes.shape[1]])
            pieces.append(self._exact(some).astype(np.float32))
        return np.concatenate(pieces)

    def exact(self, read: Read) -> NDArray[np.float64]:
        """Return it as it is worked out, in float64."""
        return self._exact({name: read(name) for name in self.parts})

    def _by_rows(self, held: Mapping[str, Array]) -> bool:
        """Say whether nodes and constants HELD are those that our exports write, row by row."""
        if tuple(node.op_type for node in self.nodes[: len(OURS)]) != OURS:
            return False
        first, blocks, add, shape = self.nodes[: len(OURS)]
        arrays = [held[name] for name in (*first.input, add.input[1]) if name in held]
        sizes = [held[node.input[1]].tolist() for node in (blocks, shape) if node.input[1] in held]
        rows = {len(it) for it in arrays if it.ndim} | {size[0] for size in sizes[:1] if size}
        shapes = [it.ndim for it in arrays] == [2, 2, 3] and dict(_settings(first)).get("axis") == 1
        return shapes and len(rows) == 1 and len(sizes) == 2 and all(sizes)

    def _exact(self, held: Mapping[str, Array]) -> NDArray[np.float64]:
        found: dict[str, Array] = dict(held)
        for node in self.nodes:
            found[node.output[0]] = _value(node, [found[name] for name in node.input if name])
        return found[self.nodes[-1].output[0]]


def made_weights(graph: Any, constants: Collection[str]) -> dict[str, MadeWeight]:
    """Return the weights that GRAPH makes of its CONSTANTS, by the name of the value."""
    chains: dict[str, MadeWeight] = {}
    outside = {value.name for value in graph.output}
    for node in graph.node:
        if made := _made(node, chains, constants):
            chains[node.output[0]] = made
        else:
            outside |= set(node.input)
    return {name: it for name, it in chains.items() if name in outside}


def _made(
    node: Any, chains: dict[str, MadeWeight], constants: Collection[str]
) -> MadeWeight | None:
    """Return what NODE makes of constants and CHAINS before it; ``None`` where it takes anything else."""
    names = [name for name in node.input if name]
    if node.op_type not in STEPS or not names or len(node.output) != 1:
        return None
    before = [chains[name] for name in names if name in chains]
    begins = node.op_type == "DequantizeLinear" and not before
    known = all(name in chains or name in constants for name in names)
    if not known or not (before or begins):
        return None
    nodes = {id(it): it for made in before for it in made.nodes} | {id(node): node}
    return MadeWeight(tuple(nodes.values()), frozenset(it.output[0] for it in nodes.values()))


def _shape(node: Any, given: list[tuple[int, ...]], read: Read) -> tuple[int, ...]:
    empty = np.broadcast_to(np.float64(0), given[0])
    if node.op_type == "Reshape":
        return empty.reshape(_sizes(read(node.input[1]), given[0])).shape
    if node.op_type == "DequantizeLinear" and not _fits(given, dict(_settings(node))):
        raise ValueError("scales of another shape")
    return np.broadcast_shapes(*given) if node.op_type == "Add" else given[0]


def _fits(given: list[tuple[int, ...]], settings: dict[str, int]) -> bool:
    """Say whether scales and zeros, of shapes GIVEN after that of the codes, reach all of these."""
    axis, block = settings.get("axis", 1), settings.get("block_size", 0)
    codes = given[0]
    wanted: dict[int, tuple[int, ...]] = {}
    wanted |= {1: (codes[axis],)} if any(math.prod(it) != 1 for it in given[1:]) else {}
    if wanted and block:
        blocks = -(-codes[axis] // block)
        wanted = {len(codes): (*codes[:axis], blocks, *codes[axis % len(codes) + 1 :])}
    return all(math.prod(it) == 1 or wanted.get(len(it)) == it for it in given[1:])


def _value(node: Any, given: list[Array]) -> NDArray[np.float64]:
    first = given[0].astype(np.float64)
    if node.op_type == "DequantizeLinear":
        settings = dict(_settings(node))
        scale, *zero = (_spread(it.astype(np.float64), first, settings) for it in given[1:])
        found: NDArray[np.float64] = (first - zero[0] if zero else first) * scale
        return found
    if node.op_type == "Reshape":
        return first.reshape(_sizes(given[1], first.shape))
    return first + given[1] if node.op_type == "Add" else first


def _sizes(wanted: Array, before: tuple[int, ...]) -> list[int]:
    """Return the sizes that a ``Reshape`` to WANTED leads to; 0 keeps the one BEFORE."""
    return [before[axis] if size == 0 else int(size) for axis, size in enumerate(wanted)]


def _spread(
    part: NDArray[np.float64], codes: NDArray[np.float64], settings: dict[str, int]
) -> NDArray[np.float64]:
    """Return PART, scales or zeros, for every one of CODES; ``IndexError`` where they do not reach."""
    axis, block = settings.get("axis", 1), settings.get("block_size", 0)
    if part.size == 1:
        return part.reshape(())
    if block:
        return np.take(np.repeat(part, block, axis), range(codes.shape[axis]), axis)
    shape = [1] * codes.ndim
    shape[axis] = -1
    return part.reshape(shape)


def _settings(node: Any) -> Iterator[tuple[str, int]]:
    yield from ((it.name, it.i) for it in node.attribute)


def _type_of(node: Any) -> np.dtype[Any]:
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(dict(_settings(node))["to"]))
