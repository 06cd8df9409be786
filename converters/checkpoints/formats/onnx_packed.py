"""Weights inside ``com.microsoft.MatMulNBits`` nodes, at the values that their codes stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.dtypes import CODE, FLOATS
from ...values import Array
from ..base import Header

NODE: Final = "MatMulNBits"
BITS: Final = frozenset({2, 4, 8})
INPUTS: Final = ("x", "codes", "scales", "zeros", "order", "bias")
AT_ONCE: Final = 1 << 22  # numbers


class PackedWeight(NamedTuple):
    """A weight that one node multiplies by: ``scale * (code - zero)``, in blocks of a row.

    Attributes:
        shape: rows (outputs) and columns, as in PyTorch.
        bits: of a code; those of a byte begin with its lowest bits.
        block: columns that share scale and zero.
        names: of codes, scales and perhaps zeros.
    """

    shape: tuple[int, int]
    bits: int
    block: int
    names: tuple[str, ...]

    @property
    def blocks(self) -> int:
        """How many blocks a row has; the last one may reach beyond its end."""
        return -(-self.shape[1] // self.block)

    def header(self, constants: Mapping[str, Any]) -> Header | None:
        """Return its dtype and shape; ``None`` where the CONSTANTS do not fit together."""
        from onnx import helper

        sizes = [int(np.prod(constants[name].dims)) for name in self.names]
        rows, each = self.shape[0], -(-self.blocks * self.bits // 8)
        stored = self.blocks * max(1, self.block * self.bits // 8)
        wanted = [{rows * stored}, {rows * self.blocks}, {rows * self.blocks, rows * each}]
        fits = all(size in them for size, them in zip(sizes, wanted, strict=False))
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(constants[self.names[1]].data_type))
        return Header(CODE[dtype], self.shape) if fits and CODE.get(dtype) in FLOATS else None

    def values(self, read: Callable[[str], Array]) -> Array:
        """Return it as float32: worked out in float64 and rounded once, some rows at a time."""
        held = [read(name).reshape(self.shape[0], -1) for name in self.names]
        each = max(1, AT_ONCE // max(1, self.shape[1]))
        starts = range(0, self.shape[0], each)
        rows = [self._rows([it[start : start + each] for it in held]) for start in starts]
        return np.concatenate([np.empty((0, self.shape[1]), np.float32), *rows])

    def _rows(self, held: list[Array]) -> NDArray[np.float32]:
        codes = unpacked(held[0], self.bits).reshape(len(held[0]), self.blocks, -1)
        zeros = self._zeros(held[2]) if len(held) > 2 else np.float64(1 << (self.bits - 1))
        values = (codes[..., : self.block] - zeros) * held[1].astype(np.float64)[..., None]
        return values.reshape(len(values), -1)[:, : self.shape[1]].astype(np.float32)

    def _zeros(self, part: Array) -> NDArray[np.float64]:
        """Return the zeros in PART of some rows: packed as codes are, or one number each."""
        numbers = unpacked(part, self.bits) if part.dtype == np.uint8 else part
        return numbers[:, : self.blocks, None].astype(np.float64)


def unpacked(part: Array, bits: int) -> Array:
    """Return the codes of BITS each in the bytes PART, along its last axis.

    >>> unpacked(np.array([[33]], np.uint8), 4).tolist()
    [[1, 2]]
    """
    apart = part[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    codes: Array = apart.reshape(*part.shape[:-1], -1)
    return codes


def packed_weights(graph: Any, constants: Mapping[str, Any]) -> dict[str, PackedWeight]:
    """Return the weights inside the nodes of GRAPH by the name that onnxruntime's quantizer took codes from.

    CONSTANTS are its initializers. Weights with columns in another order are left out.
    """
    found: dict[str, PackedWeight] = {}
    for node in graph.node:
        given = dict(zip(INPUTS, node.input, strict=False))
        names = tuple(given[it] for it in INPUTS[1:4] if given.get(it))
        settings = {it.name: it.i for it in node.attribute}
        bits = settings.get("bits", 4)
        rows, columns, block = (settings.get(it, 0) for it in ("N", "K", "block_size"))
        known = len(names) > 1 and all(it in constants for it in names) and min(columns, block) > 0
        if node.op_type != NODE or given.get("order") or not known or bits not in BITS:
            continue
        name = names[0].removesuffix(f"_Q{bits}")
        found[name] = PackedWeight((rows, columns), bits, block, names)
    return found
