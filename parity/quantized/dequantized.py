"""Quantized weights, as they are read dense, against MLX's own reading of the same codes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...converters.common.arrays import to_mlx
from ...converters.quantization import Dequantized, Scheme
from ...converters.quantization.mlx import Parts
from ...converters.runtimes.blas import mlx_on
from ...converters.values import Array
from ..check.verdict import Stage

NAME = "dequantized"
FLOAT32 = np.finfo(np.float32)


class Read(NamedTuple):
    """One weight as it was read.

    Attributes:
        wrong: numbers that are not what MLX makes of the same codes.
        moved: how far rounding to the dtype that it is read in moved it, as a part of its size.
    """

    wrong: int
    moved: float


def dequantized_stage(tensors: Dequantized) -> Stage:
    """Return the stage that holds every quantized weight of TENSORS against ``mx.dequantize``.

    MLX is given scales and biases in float32 and rounds a product and a sum to float32; a weight may
    be off by that and by one rounding to the dtype that it is read in.
    """
    try:
        import mlx.core as mx
    except ImportError:
        return Stage(NAME, "unverified", "MLX, which made the codes, is not installed to read them")
    with mlx_on("cpu"):
        found = {name: read(mx, tensors, name) for name in tensors.schemes}
    wrong = {name: it.wrong for name, it in found.items() if it.wrong}
    figures: dict[str, Any] = {"moved": {name: it.moved for name, it in found.items()}}
    if wrong:
        name = max(wrong, key=lambda it: wrong[it])
        part = (
            f"{len(wrong)} of {len(found)} weights are not what mx.dequantize makes of their codes"
        )
        detail = f"{part}: {name} in {wrong[name]:,} numbers"
        return Stage(NAME, "fail", detail, figures | {"wrong": wrong})
    return Stage(NAME, "pass", summary(tensors, figures["moved"]), figures)


def summary(tensors: Dequantized, moved: dict[str, float]) -> str:
    """Say that the weights of TENSORS are right, and how far rounding MOVED them."""
    worst = max(moved, key=lambda name: moved[name])
    dtype, kinds = tensors.headers[worst].dtype, sorted({*map(str, tensors.schemes.values())})
    right = f"{len(moved)} weights ({'; '.join(kinds)}) are what mx.dequantize makes of their codes"
    if not moved[worst]:
        return f"{right}; {dtype} holds them exactly"
    return f"{right}; rounding to {dtype} moved them by {moved[worst]:.2g} of their size at most"


def read(mx: Any, tensors: Dequantized, name: str) -> Read:
    """Compare the weight NAME of TENSORS, rows at a time."""
    wrong, moved, size = 0, 0.0, 0.0
    for parts, exact, dense in tensors.pieces(name):
        expected = by_mlx(mx, parts, tensors.schemes[name])
        got = dense.astype(np.float64)
        wrong += int(np.count_nonzero(~within(got, expected, slack(parts, expected, dense))))
        moved += float(np.square(got - exact).sum(dtype=np.float64))
        size += float(np.square(exact, dtype=np.float64).sum())
    return Read(wrong, float(np.sqrt(moved / size)) if size else 0.0)


def within(got: Array, expected: Array, allowed: Array) -> Array:
    """Say of which elements GOT is EXPECTED, but for ALLOWED; infinities and NaN must be the same.

    >>> within(np.array([1.0, np.inf]), np.array([1.5, np.inf]), np.array([0.1, 0.1])).tolist()
    [False, True]
    """
    with np.errstate(invalid="ignore"):
        near = np.abs(got - expected) <= allowed
    same: Array = near | (got == expected) | (np.isnan(got) & np.isnan(expected))
    return same


def slack(parts: Parts, expected: Array, dense: Array) -> Array:
    """Return how far DENSE may be from EXPECTED, which MLX made of PARTS in float32."""
    import ml_dtypes

    info: Any = ml_dtypes.finfo(dense.dtype)  # type: ignore[no-untyped-call]
    sizes = np.abs(expected)
    allowed = (2 * FLOAT32.eps + float(info.eps) / 2) * sizes + float(info.smallest_subnormal)
    if "biases" in parts:
        biases = np.abs(parts["biases"].astype(np.float64))
        allowed += FLOAT32.eps * np.repeat(biases, sizes.shape[-1] // biases.shape[-1], axis=-1)
    result: Array = allowed
    return result


def by_mlx(mx: Any, parts: Parts, scheme: Scheme) -> Array:
    """Return what MLX makes of PARTS, rows of a weight, in float64; it computes in float32."""
    factors = parts.get("global_scale")
    if factors is None:
        return one_by_mlx(mx, parts, scheme)
    made = np.empty((len(factors), parts["scales"].shape[-1] * scheme.group_size))
    for factor in np.unique(factors):
        rows = factors == factor
        some = {part: array[rows] for part, array in parts.items() if part != "global_scale"}
        made[rows] = one_by_mlx(mx, some, scheme, global_scale=mx.array(np.float32(factor)))
    return made


def one_by_mlx(mx: Any, parts: Parts, scheme: Scheme, **more: Any) -> Array:
    """Return what MLX makes of PARTS that have one global scale, if any, in float64."""
    wide = [to_mlx(parts[it].astype(np.float32)) for it in ("scales", "biases") if it in parts]
    scales = wide if scheme.affine else [to_mlx(parts["scales"])]
    made = mx.dequantize(
        to_mlx(parts["weight"]), *scales, **scheme.record, **more, dtype=mx.float32
    )
    return np.array(made, np.float64)
