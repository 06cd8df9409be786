"""Weights that an ONNX graph makes of codes before it computes: at the values that the codes stand for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.dtypes import CODE
from ...values import Array
from ..base import Header

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

    def header(self, read: Read, shapes: Callable[[str], tuple[int, ...]]) -> Header:
        """Return its dtype and shape; READ gives small constants, SHAPES the shape of any."""
        known: dict[str, tuple[int, ...]] = {}
        dtype = np.dtype(np.float32)
        for node in self.nodes:
            given = [known.get(name) or shapes(name) for name in node.input if name]
            dtype = read(node.input[1]).dtype if node.op_type == "DequantizeLinear" else dtype
            dtype = _type_of(node) if node.op_type == "Cast" else dtype
            known[node.output[0]] = _shape(node, given, read)
        return Header(CODE[dtype], known[self.nodes[-1].output[0]])

    def values(self, read: Read) -> Array:
        """Return it as float32: worked out in float64, rounded once."""
        found: dict[str, NDArray[np.float64]] = {}
        for node in self.nodes:
            given = [found[name] if name in found else read(name) for name in node.input if name]
            found[node.output[0]] = _value(node, given)
        return found[self.nodes[-1].output[0]].astype(np.float32)


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
    before = [chains[name] for name in names if name in chains]
    begins = node.op_type == "DequantizeLinear" and not before
    known = all(name in chains or name in constants for name in names)
    if not known or node.op_type not in STEPS or not (before or begins):
        return None
    nodes = {id(it): it for made in before for it in made.nodes} | {id(node): node}
    return MadeWeight(tuple(nodes.values()), frozenset(it.output[0] for it in nodes.values()))


def _shape(node: Any, given: list[tuple[int, ...]], read: Read) -> tuple[int, ...]:
    if node.op_type == "Reshape":
        empty = np.broadcast_to(np.float64(0), given[0])
        return empty.reshape(_sizes(read(node.input[1]), given[0])).shape
    return np.broadcast_shapes(*given) if node.op_type == "Add" else given[0]


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
    """Return PART, scales or zeros, for every one of CODES."""
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
