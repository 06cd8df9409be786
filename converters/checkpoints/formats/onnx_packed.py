"""Weights inside ``com.microsoft.MatMulNBits`` nodes, at the values that their codes stand for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedError
from ...common.dtypes import CODE, FLOATS
from ...values import Array
from ..base import Header

NODE: Final = "MatMulNBits"
DOMAIN: Final = "com.microsoft"
BITS: Final = frozenset({2, 4, 8})
INPUTS: Final = ("x", "codes", "scales", "zeros", "order", "bias")
OF_SUMS: Final = ("ReduceSum", "Reshape", "Concat", "Shape")  # onnx_export.products
Read = Callable[[str], Array]
AT_ONCE: Final = 1 << 22  # numbers


class PackedWeight(NamedTuple):
    """A weight that one node multiplies by: ``scale * (code - zero) + rest``, in blocks of a row.

    Attributes:
        shape: rows (outputs) and columns, as in PyTorch.
        bits: of a code; those of a byte begin with its lowest bits.
        block: columns that share scale and zero.
        codes: the constant with the codes.
        scales: that with a scale for each block of each row.
        zeros: that with their zeros; empty for the middle code.
        order: that with the number of the block of each column; empty where they follow each other.
        rest: that with what is added to each block, transposed, which other nodes multiply by; or empty.
    """

    shape: tuple[int, int]
    bits: int
    block: int
    codes: str
    scales: str
    zeros: str = ""
    order: str = ""
    rest: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The constants that it is made of."""
        held = (self.codes, self.scales, self.zeros, self.order, self.rest)
        return tuple(name for name in held if name)

    @property
    def blocks(self) -> int:
        """How many blocks a row has; the last one may reach beyond its end."""
        return -(-self.shape[1] // self.block)

    def header(self, constants: Mapping[str, Any]) -> Header | None:
        """Return its dtype and shape; ``None`` where the CONSTANTS do not fit together."""
        from onnx import helper

        rows, each = self.shape[0], -(-self.blocks * self.bits // 8)
        stored = self.blocks * max(1, self.block * self.bits // 8)
        wanted = {
            self.codes: {rows * stored},
            self.scales: {rows * self.blocks},
            self.zeros: {rows * self.blocks, rows * each},
            self.order: {self.shape[1], self.blocks * self.block},
            self.rest: {rows * self.blocks},
        }
        fits = all(int(np.prod(constants[it].dims)) in wanted[it] for it in self.names)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(constants[self.scales].data_type))
        return Header(CODE[dtype], self.shape) if fits and CODE.get(dtype) in FLOATS else None

    def values(self, read: Read) -> Array:
        """Return it as float32: worked out in float64 and rounded once, some rows at a time."""
        each = max(1, AT_ONCE // max(1, self.shape[1]))
        starts = range(0, self.shape[0], each)
        held = self.parts(read)
        rows = [held.rows(slice(start, start + each)).astype(np.float32) for start in starts]
        return np.concatenate([np.empty((0, self.shape[1]), np.float32), *rows])

    def parts(self, read: Read) -> Parts:
        """Return what it is made of, a code and a block for each column.

        Raises:
            UnsupportedError: its zeros are codes and its columns in another order.
        """
        codes = unpacked(read(self.codes).reshape(self.shape[0], -1), self.bits)
        codes = codes.reshape(self.shape[0], self.blocks, -1)[..., : self.block]
        zeros: Array = np.full((1, 1), 1 << (self.bits - 1), np.float64)
        if self.zeros:
            part = read(self.zeros).reshape(self.shape[0], -1)
            if self.order and part.dtype == np.uint8:
                raise UnsupportedError(
                    f"{self.codes}: its columns are in another order ({self.order}) and its zeros are codes,"
                    " which onnxruntime leaves out then; write zeros in floating point, or no order"
                )
            zeros = unpacked(part, self.bits) if part.dtype == np.uint8 else part
        order = np.arange(self.shape[1]) // self.block
        return Parts(
            codes.reshape(self.shape[0], -1)[:, : self.shape[1]],
            read(self.scales).reshape(self.shape[0], -1),
            np.broadcast_to(zeros[:, : self.blocks], (self.shape[0], self.blocks)),
            read(self.order).reshape(-1)[: self.shape[1]] if self.order else order,
            read(self.rest).reshape(self.blocks, -1).T if self.rest else None,
        )


class Parts(NamedTuple):
    """What a weight is made of.

    Attributes:
        codes: one a column, shape ``(rows, columns)``.
        scales: shape ``(rows, blocks)``.
        zeros: likewise.
        order: the block of each column.
        rest: what is added to a block, shaped as the scales; ``None`` for nothing.
    """

    codes: Array
    scales: Array
    zeros: Array
    order: Array
    rest: Array | None

    def rows(self, some: slice) -> NDArray[np.float64]:
        """Return the values of SOME rows."""
        scales, zeros = (it[some].astype(np.float64) for it in (self.scales, self.zeros))
        order = self.order
        values: NDArray[np.float64] = (self.codes[some] - zeros[:, order]) * scales[:, order]
        return values if self.rest is None else values + self.rest[some][:, order]

    def biases(self) -> NDArray[np.float64]:
        """Return what a code of 0 is worth, by blocks."""
        found: NDArray[np.float64] = -self.zeros.astype(np.float64) * self.scales
        return found if self.rest is None else found + self.rest


def unpacked(part: Array, bits: int) -> Array:
    """Return the codes of BITS each in the bytes PART, along its last axis.

    >>> unpacked(np.array([[33]], np.uint8), 4).tolist()
    [[1, 2]]
    """
    apart = part[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    codes: Array = apart.reshape(*part.shape[:-1], -1)
    return codes


def packed_weights(graph: Any, constants: Mapping[str, Any], read: Read) -> dict[str, PackedWeight]:
    """Return the weights inside the nodes of GRAPH by the name that onnxruntime's quantizer took codes from.

    CONSTANTS are its initializers, which READ gives.
    """
    found: dict[str, PackedWeight] = {}
    nodes = [node for node in graph.node if node.op_type == NODE]
    sums = Sums(graph, read) if nodes else None
    for node in nodes:
        given = dict(zip(INPUTS, node.input, strict=False))
        codes, scales, zeros, order = parts = [given.get(it, "") for it in INPUTS[1:5]]
        settings = {it.name: it.i for it in node.attribute}
        bits = settings.get("bits", 4)
        rows, columns, block = (settings.get(it, 0) for it in ("N", "K", "block_size"))
        known = all(parts[:2]) and all(it in constants for it in parts if it)
        if not known or min(columns, block) <= 0 or bits not in BITS or sums is None:
            continue
        rest, name = sums.added_to(node, block, constants), codes.removesuffix(f"_Q{bits}")
        shape = (rows, columns)
        found[name] = PackedWeight(shape, bits, block, codes, scales, zeros, order, rest)
    return found


class Sums:
    """Where a graph adds to a product what sums of blocks of its input are multiplied by."""

    def __init__(self, graph: Any, read: Read) -> None:
        self._made = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._outputs, self._read = {it.name for it in graph.output}, read

    def added_to(self, node: Any, block: int, constants: Collection[str]) -> str:
        """Return the one of CONSTANTS that is added to the product NODE for each BLOCK of columns; or nothing."""
        product = node.output[0]
        readers = self._readers.get(product, [])
        if len(readers) != 1 or readers[0].op_type != "Add" or product in self._outputs:
            return ""
        other = self._made.get(next((it for it in readers[0].input if it != product), ""))
        if other is None or other.op_type != "MatMul" or other.input[1] not in constants:
            return ""
        return other.input[1] if self._sums(other.input[0], node.input[0], block) else ""

    def _sums(self, name: str, given: str, block: int) -> bool:
        """Say whether the value NAME is the sums of each BLOCK of the last axis of the value GIVEN."""
        try:
            total = self._made[name]
            grouped = self._made[total.input[0]]
            shape = self._made[grouped.input[1]]
            lead = self._made[shape.input[0]]
            settings = {it.name: it.i for node in (total, lead) for it in node.attribute}
            known = [it.op_type for it in (total, grouped, shape, lead)] == list(OF_SUMS)
            tail, axis = self._read(shape.input[1]), self._read(total.input[1])
            inputs = {grouped.input[0], lead.input[0]} == {given} and len(shape.input) == 2
        except (KeyError, IndexError):
            return False
        plain = (settings.get("keepdims"), settings.get("end")) == (0, -1)
        return known and inputs and plain and axis.tolist() == [-1] and tail.tolist()[1:] == [block]
