"""What the codes of a compressed constant could have stood for: the value nearest to a number.

Weights are compressed by taking, for each number, the nearest point of a grid or entry of a table, or zero.
So a constant tells of which tensor it was made: of the one whose numbers are nearest to its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...values import Array
from .evaluator import constant_value, dtype_name
from .kernels.constexpr import CONSTEXPR, spread, unpack

Float64 = NDArray[np.float64]
# coremltools computes codes in float16: each rounding moves the middle between two points by 2**-11 of what
# is rounded, and one distance grows as the other shrinks.
HALVES: Final = 2.0**-10
ROUNDED: Final = 2.0**-9  # two of them, of numbers as large as the width of a table
TABLE_ROUNDED: Final = 2.0**-6  # the same where the table itself was rounded to 8 bits afterwards
CHUNK: Final = 1 << 12  # vectors whose distances to a table are computed at a time


class Closest(NamedTuple):
    """The values nearest to given ones that codes could have stood for.

    Attributes:
        values: these.
        step: how far neighbours of a group are apart, of a table on average; 0 where any number can be held.
        room: by how much rounding may have moved a point half way between two.
    """

    values: Float64
    step: Float64
    room: Float64


def is_compressed(variable: Any) -> bool:
    """Say whether a variable of a program is made of codes."""
    return variable.op is not None and variable.op.op_type in CONSTEXPR


def closest(variable: Any, wanted: Float64) -> Closest:
    """Return the values nearest to WANTED, of its own shape, that VARIABLE could stand for.

    Codes and masks may be others, but zeros of a sparse constant stay; scales and tables are as they are.
    """
    if not is_compressed(variable):
        held = wanted.astype(np.asarray(constant_value(variable)).dtype).astype(np.float64)
        return Closest(held, np.zeros_like(wanted), ROUNDED * np.abs(wanted))
    return RULES[variable.op.op_type](variable.op, wanted)


def zeros_of(variable: Any) -> Array | None:
    """Return where a sparse constant has zeros that no code stands for; ``None`` if it is not sparse."""
    if not is_compressed(variable) or variable.op.op_type != "constexpr_sparse_to_dense":
        return None
    given = _given(variable.op.inputs, "mask", "shape")
    mask = given["mask"]
    if given.get("shape") is not None:
        size = int(np.prod(given["shape"]))
        mask = unpack(mask, 1, size).reshape(given["shape"])
    zeros: Array = ~mask.astype(bool)
    return zeros


def _given(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {it: constant_value(inputs[it]) for it in names if inputs.get(it) is not None}


def _range(variable: Any) -> tuple[int, int]:
    """Return the least and the largest number of the integer dtype of a variable."""
    name = dtype_name(variable)
    bits = int("".join(filter(str.isdigit, name)))
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _on_grid(codes: Any, scale: Float64, offset: Float64, wanted: Float64) -> Closest:
    """Return the nearest of ``scale * (code - offset)``; CODES may be what a table makes of others."""
    if dtype_name(codes).startswith("fp"):
        inner = closest(codes, wanted / np.where(scale == 0, 1.0, scale) + offset)
        sizes = np.abs(scale)
        return Closest(scale * (inner.values - offset), sizes * inner.step, sizes * inner.room)
    return on_grid(_range(codes), scale, offset, wanted)


def on_grid(codes: tuple[int, int], scale: Float64, offset: Float64, wanted: Float64) -> Closest:
    """Return the nearest of ``scale * (code - offset)``, CODES being the least and the largest one."""
    place = wanted / np.where(scale == 0, 1.0, scale) + offset
    values = scale * (np.clip(np.rint(place), *codes) - offset)
    step = np.abs(scale)
    # The number and its quotient were rounded, and the sum with the offset.
    return Closest(values, step, step * HALVES * (np.abs(place) + 2 * np.abs(place - offset)))


def _blockwise(operation: Any, wanted: Float64) -> Closest:
    inputs = operation.inputs
    codes = inputs.get("data") or inputs["nonzero_data"]
    given = _given(inputs, "scale", "offset")
    offset = given.get("offset")
    apart = np.zeros(()) if offset is None else spread(offset, wanted.shape)
    return _on_grid(codes, spread(given["scale"], wanted.shape), apart, wanted)


def _affine(operation: Any, wanted: Float64) -> Closest:
    inputs = operation.inputs
    given = _given(inputs, "scale", "zero_point", "axis")
    shape = [1] * wanted.ndim
    shape[int(given["axis"])] = -1

    def along(parameter: Array) -> Float64:
        wide = np.asarray(parameter, np.float64)
        return np.broadcast_to(wide.reshape(shape) if wide.size > 1 else wide, wanted.shape)

    scale, offset = along(given["scale"]), along(given["zero_point"])
    return _on_grid(inputs["quantized_data"], scale, offset, wanted)


def _table(operation: Any, wanted: Float64) -> Closest:
    inputs = operation.inputs
    lut = np.asarray(constant_value(inputs["lut"]), np.float64)
    share = TABLE_ROUNDED if is_compressed(inputs["lut"]) else ROUNDED
    if lut.ndim == 1:
        lut = lut.reshape(*[1] * wanted.ndim, -1, 1)
    axis = _given(inputs, "vector_axis").get("vector_axis")
    made = [np.empty(wanted.shape) for _ in range(3)]
    groups = lut.shape[:-2]
    for group in np.ndindex(groups):
        sizes = zip(group, wanted.shape, groups, strict=True)
        block = tuple(slice(at * (size // n), (at + 1) * (size // n)) for at, size, n in sizes)
        found = _of_table(lut[group], wanted[block], None if axis is None else int(axis))
        made[0][block], made[1][block] = found
        made[2][block] = share * np.ptp(lut[group])
    return Closest(*made)


def _of_table(lut: Float64, wanted: Float64, axis: int | None) -> tuple[Float64, float]:
    """Return the entries of LUT nearest to WANTED, and how far its entries are apart on average."""
    step = float(np.ptp(lut)) / max(len(lut) ** (1 / lut.shape[-1]) - 1, 1)
    if lut.shape[-1] == 1:
        levels = np.sort(lut[:, 0])
        middles = (levels[1:] + levels[:-1]) / 2
        return levels[np.searchsorted(middles, wanted)], step
    length, along = lut.shape[-1], 0 if axis is None else axis
    moved = np.moveaxis(wanted, along, -1)
    vectors = moved.reshape(-1, length)
    entries = [
        lut[np.argmin(np.square(part[:, None] - lut).sum(-1), axis=-1)]
        for part in np.split(vectors, range(CHUNK, len(vectors), CHUNK))
    ]
    return np.moveaxis(np.concatenate(entries).reshape(moved.shape), -1, along), step


def _sparse(operation: Any, wanted: Float64) -> Closest:
    inner = closest(operation.inputs["nonzero_data"], wanted)
    zeros = np.asarray(zeros_of(operation.outputs[0]))
    return inner._replace(values=np.where(zeros, 0.0, inner.values))


RULES: Final[Mapping[str, Callable[[Any, Float64], Closest]]] = {
    "constexpr_affine_dequantize": _affine,
    "constexpr_blockwise_shift_scale": _blockwise,
    "constexpr_cast": lambda operation, wanted: closest(operation.inputs["source_val"], wanted),
    "constexpr_lut_to_dense": _table,
    "constexpr_lut_to_sparse": _table,
    "constexpr_sparse_blockwise_shift_scale": _blockwise,
    "constexpr_sparse_to_dense": _sparse,
}
