"""What a program may do: MLX's own primitives, by the names under which MLX exports them.

``mx.export_function`` reports a traced function as primitives with operands and arguments. Each row
here runs one of them again through the public function that makes it, so that a replay gives the
same bits. The last rows are calls that MLX cannot export, or exports as dozens of primitives.
"""
# ruff: noqa: ARG001, ARG005  (all rows have one signature)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ...common.dtypes import dtype_of
from ..execution.exchange import mlx_dtype, to_mlx

Number: TypeAlias = int | float
Argument: TypeAlias = Number | str | tuple[Number, ...]  # a dtype is a str, flags are bools
Inputs: TypeAlias = Sequence[Any]  # mx.array
Run: TypeAlias = Callable[[Any, Inputs, Sequence[Any]], Any]  # mlx.core, operands, arguments


class Primitive(NamedTuple):
    """A row of the table.

    Attributes:
        operands: how many arrays it takes; ``None`` for one or more.
        arguments: what follows the operands, a letter each: ``i`` an integer, ``n`` any number,
            ``b`` a flag, ``d`` a dtype, ``l`` a list of integers, ``v`` a list of numbers.
        run: what it does; a single array, or several.
    """

    operands: int | None
    arguments: str
    run: Run


MODES: Final = ("affine", "mxfp4", "mxfp8", "nvfp4")
BITWISE: Final = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
REDUCTIONS: Final = ("all", "any", "sum", "prod", "min", "max")
LOGARITHMS: Final = ("log2", "log10", "log")
SCANS: Final = ("cummax", "cummin", "cumsum", "cumprod", "logcumsumexp")
UNARY: Final = {
    "Abs": "abs", "Ceil": "ceil", "Cos": "cos", "Erf": "erf", "Exp": "exp", "Expm1": "expm1",
    "Floor": "floor", "Log1p": "log1p", "LogicalNot": "logical_not", "Negative": "negative",
    "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Square": "square",
    "Tanh": "tanh", "BitwiseInvert": "bitwise_invert",
}  # fmt: skip
BINARY: Final = {
    "Add": "add", "FloorDivide": "floor_divide", "Greater": "greater",
    "GreaterEqual": "greater_equal", "Less": "less", "LessEqual": "less_equal",
    "LogAddExp": "logaddexp", "LogicalAnd": "logical_and", "LogicalOr": "logical_or",
    "Matmul": "matmul", "Maximum": "maximum", "Minimum": "minimum", "Multiply": "multiply",
    "NotEqual": "not_equal", "Power": "power", "Remainder": "remainder", "Subtract": "subtract",
}  # fmt: skip


def _first(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    return x[0]


def _unary(name: str) -> Primitive:
    return Primitive(1, "", lambda mx, x, a: getattr(mx, name)(x[0]))


def _binary(name: str) -> Primitive:
    return Primitive(2, "", lambda mx, x, a: getattr(mx, name)(x[0], x[1]))


def _divide(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    whole = mx.issubdtype(x[0].dtype, mx.integer)
    return mx.floor_divide(*x) if whole else mx.divide(*x)


def _equal(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    if a[0]:  # NaN equals NaN
        return mx.logical_or(mx.equal(*x), mx.logical_and(mx.isnan(x[0]), mx.isnan(x[1])))
    return mx.equal(*x)


def _slices(starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Any:
    return tuple(slice(*bounds) for bounds in zip(starts, stops, steps, strict=True))


def _slice(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    return x[0][_slices(*a)]


def _slice_update(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    """Write the second operand into the first; MLX's mode 4 is assignment, the only one here."""
    if a[0] != ASSIGNMENT:
        raise ValueError(f"SliceUpdate of mode {a[0]} has no replay, only {ASSIGNMENT}, assignment")
    changed = mx.array(x[0])
    changed[_slices(*a[1:])] = x[1]
    return changed


ASSIGNMENT: Final = 4


def _pad(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    widths = [(0, 0)] * x[0].ndim
    for axis, before, after in zip(*a, strict=True):
        widths[axis] = (before, after)
    return mx.pad(x[0], widths, constant_values=x[1])


def _gather(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    """Take slices of size 1 along the axes ``a[0]`` and of sizes ``a[1]`` along the others."""
    array, *indices = x
    axes, sizes = a
    others = [axis for axis in range(array.ndim) if axis not in axes]
    if any(sizes[axis] != 1 for axis in axes) or len(axes) != len(indices):
        raise ValueError("Gather has a replay for slices of size 1 along its axes only")
    cut = array[tuple(slice(0, sizes[i] if i in others else None) for i in range(array.ndim))]
    found = cut.transpose([*axes, *others])[tuple(indices)]
    return found.reshape([*found.shape[: found.ndim - len(others)], *sizes])


def _quantize(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    size, bits, mode, back = a
    if back:
        return mx.dequantize(*x, group_size=size, bits=bits, mode=MODES[mode])
    return mx.quantize(x[0], group_size=size, bits=bits, mode=MODES[mode])


def _dequantize(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    size, bits, mode, dtype = a
    kept = {"group_size": size, "bits": bits, "mode": MODES[mode]}
    return mx.dequantize(*x, **kept, dtype=mlx_dtype(dtype))


def _scan(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    kind, axis, backwards, inclusive = a
    return getattr(mx, SCANS[kind])(x[0], axis=axis, reverse=bool(backwards), inclusive=inclusive)


def _constant(mx: Any, x: Inputs, a: Sequence[Any]) -> Any:
    dtype, shape, values = a
    return to_mlx(np.array(values, dtype=dtype_of(dtype)).reshape(shape))


PRIMITIVES: Final[dict[str, Primitive]] = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    "Arange": Primitive(0, "nnnd", lambda mx, x, a: mx.arange(*a[:3], dtype=mlx_dtype(a[3]))),
    "ArgSort": Primitive(1, "i", lambda mx, x, a: mx.argsort(x[0], a[0])),
    "AsType": Primitive(1, "d", lambda mx, x, a: x[0].astype(mlx_dtype(a[0]))),
    "BitwiseBinary": Primitive(2, "i", lambda mx, x, a: getattr(mx, BITWISE[a[0]])(*x)),
    "Broadcast": Primitive(1, "l", lambda mx, x, a: mx.broadcast_to(x[0], a[0])),
    "Concatenate": Primitive(None, "i", lambda mx, x, a: mx.concatenate(list(x), a[0])),
    "Copy": Primitive(1, "", _first),
    "Divide": Primitive(2, "", _divide),
    "Equal": Primitive(2, "b", _equal),
    "ExpandDims": Primitive(1, "l", lambda mx, x, a: mx.expand_dims(x[0], list(a[0]))),
    "Flatten": Primitive(1, "ii", lambda mx, x, a: mx.flatten(x[0], *a)),
    "Full": Primitive(1, "", _first),
    "Gather": Primitive(None, "ll", _gather),
    "GatherAxis": Primitive(2, "i", lambda mx, x, a: mx.take_along_axis(x[0], x[1], a[0])),
    "Log": Primitive(1, "i", lambda mx, x, a: getattr(mx, LOGARITHMS[a[0]])(x[0])),
    "Pad": Primitive(2, "lll", _pad),
    "Quantize": Primitive(None, "iiib", _quantize),
    "Reduce": Primitive(
        1, "il", lambda mx, x, a: getattr(mx, REDUCTIONS[a[0]])(x[0], list(a[1]), keepdims=True)
    ),
    "Reshape": Primitive(1, "l", lambda mx, x, a: mx.reshape(x[0], a[0])),
    "Scan": Primitive(1, "iibb", _scan),
    "Select": Primitive(3, "", lambda mx, x, a: mx.where(*x)),
    "Slice": Primitive(1, "lll", _slice),
    "SliceUpdate": Primitive(2, "illl", _slice_update),
    "Softmax": Primitive(1, "b", lambda mx, x, a: mx.softmax(x[0], -1, precise=bool(a[0]))),
    "Sort": Primitive(1, "i", lambda mx, x, a: mx.sort(x[0], a[0])),
    "Split": Primitive(1, "li", lambda mx, x, a: mx.split(x[0], list(a[0]), a[1])),
    "Sqrt": Primitive(1, "b", lambda mx, x, a: mx.rsqrt(x[0]) if a[0] else mx.sqrt(x[0])),
    "Squeeze": Primitive(1, "l", lambda mx, x, a: mx.squeeze(x[0], list(a[0]))),
    "StopGradient": Primitive(1, "", _first),
    "Transpose": Primitive(1, "l", lambda mx, x, a: mx.transpose(x[0], list(a[0]))),
    "Unflatten": Primitive(1, "il", lambda mx, x, a: mx.unflatten(x[0], *a)),
    "View": Primitive(1, "d", lambda mx, x, a: x[0].view(mlx_dtype(a[0]))),
    # A tensor written out: its dtype, its shape, its values; and what MLX cannot export.
    "Constant": Primitive(0, "dlv", _constant),
    "Contiguous": Primitive(1, "", _first),
    "Dequantize": Primitive(None, "iiid", _dequantize),
    "FromFP8": Primitive(1, "d", lambda mx, x, a: mx.from_fp8(x[0], dtype=mlx_dtype(a[0]))),
    "ToFP8": Primitive(1, "", lambda mx, x, a: mx.to_fp8(x[0])),
}
