"""MLX's quantized weights: their exact values, and MLX's own way to make them.

A quantized weight is *parts*: ``weight`` (uint32 words of codes), ``scales``, for affine modes
``biases``, and for some nvfp4 experts ``global_scale``. The columns lie along the last axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedError
from ..checkpoints import Header
from ..common.arrays import from_mlx, to_mlx
from ..common.dtypes import CODE, FLOATS, NUMPY, dtype_of, unit_roundoff
from ..values import Array
from .codebooks import CODES, GLOBAL, SCALES, gaps
from .packing import unpack
from .rounding import TINY, half_of_tiny, keeps_subnormal
from .scheme import Scheme
from .workspace import Room

Parts = Mapping[str, Array]
Dtype = str | np.dtype[Any]  # a safetensors code, a numpy or ml_dtypes name, or the dtype itself

BLOCK: Final = 1 << 18  # elements worked on at a time: what they need stays in the cache
SAMPLE: Final = 1 << 22  # elements that a median is taken of
SUFFIX: Final = ".weight"


def stem(name: str) -> str:
    """Return the path of the module whose weight NAME is.

    >>> stem("model.layers.0.mlp.up_proj.weight")
    'model.layers.0.mlp.up_proj'
    """
    return name.removesuffix(SUFFIX)


def part_name(name: str, part: str) -> str:
    """Return what PART of the quantized weight NAME is called.

    >>> part_name("up.weight", "scales"), part_name("up.weight", "weight"), part_name("up", "scales")
    ('up.scales', 'up.weight', 'up.scales')
    """
    return name if part == "weight" else f"{stem(name)}.{part}"


def dequantize(parts: Parts, scheme: Scheme, room: Room | None = None) -> NDArray[np.float32]:
    """Return the canonical value of PARTS in float32, shape ``(..., columns)``; in ROOM if there is one.

    It is ``scale * code + bias`` in real arithmetic, rounded to float32 once (with 16-bit scales
    there is next to nothing to round). ``mx.dequantize`` rounds the product and the sum to the
    dtype of the scales, so that it differs from this by up to two such roundings.
    """
    words, scales = _rows(parts["weight"]), _rows(parts["scales"])
    biases = _rows(parts["biases"]) if scheme.affine else None
    factors = _factors(parts, len(words))
    columns = scales.shape[-1] * scheme.group_size
    room = room or Room()
    values = room("values", (len(words), columns), np.float32)
    for rows in row_blocks(len(words), columns):
        codes = unpack(words[rows], scheme.bits, room)
        codes = codes.reshape(-1, scales.shape[-1], scheme.group_size)
        block = values[rows].reshape(codes.shape)
        if biases is not None:
            _affine(codes, scales[rows], biases[rows], block, room)
        else:
            _floats(codes, scales[rows], scheme.mode, block)
        if factors is not None:
            block[:] = block * factors[rows, None, None]
    return values.reshape(*parts["weight"].shape[:-1], columns)


def dequantize_half(parts: Parts, scheme: Scheme, room: Room) -> Array | None:
    """Return what :func:`dequantize` gives, rounded to float16, in two thirds of the time; it lies in ROOM.

    ``None`` unless scales and biases are float16, no value of theirs is beyond it, and the processor keeps
    subnormal numbers.
    """
    affine = [parts[it] for it in ("scales", "biases")] if scheme.affine else []
    if not affine or any(array.dtype != np.float16 for array in affine) or not keeps_subnormal():
        return None
    scales, biases = (array.astype(np.float32) for array in affine)
    top = np.float32((1 << scheme.bits) - 1)
    if not (np.abs(scales) * top + np.abs(biases)).max(initial=0) <= np.finfo(np.float16).max:
        return None
    codes = unpack(parts["weight"], scheme.bits, room).reshape(*scales.shape, scheme.group_size)
    values = room.copy("values", codes, np.float32)
    values *= (scales * TINY)[..., None]
    values += (biases * TINY)[..., None]
    return half_of_tiny(values, room).reshape(*scales.shape[:-1], -1)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices that cover ROWS of COLUMNS, a few at a time."""
    count = max(1, BLOCK // max(columns, 1))
    return (slice(start, start + count) for start in range(0, rows, count))


def each_block(rows: slice, columns: int) -> Iterator[slice]:
    """Yield slices that cover ROWS of COLUMNS numbers, a few at a time."""
    for block in row_blocks(rows.stop - rows.start, columns):
        yield slice(rows.start + block.start, min(rows.start + block.stop, rows.stop))


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _affine(codes: Array, scales: Array, biases: Array, out: Array, room: Room) -> None:
    """Put ``scales * codes + biases`` into OUT, rounded to float32 once."""
    # A code has 8 bits and a 16-bit scale at most 11: their product is exact in float32.
    narrow = scales.dtype.itemsize == biases.dtype.itemsize == 2
    exact = out if narrow else room("exact", out.shape, np.float64)
    np.copyto(exact, codes)
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite or NaN, as in MLX
        exact *= scales.astype(exact.dtype)[..., None]
        exact += biases.astype(exact.dtype)[..., None]
    if not narrow:
        out[:] = exact


def _floats(codes: Array, scales: Array, mode: str, out: Array) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        out[:] = CODES[mode][codes] * SCALES[mode][scales][..., None]


def _factors(parts: Parts, rows: int) -> NDArray[np.float64] | None:
    """Return what each of ROWS is multiplied by after its scales; ``None`` without such a factor."""
    if "global_scale" not in parts:
        return None
    scale = parts["global_scale"].astype(np.float64).reshape(-1) / GLOBAL
    return np.repeat(scale, rows // len(scale))


def quantize(
    array: Array, scheme: Scheme, dtype: Dtype, *, global_scale: bool = False
) -> dict[str, Array]:
    """Return the parts that ``mx.quantize`` makes of ARRAY, by part.

    Args:
        array: at least two axes; the last is a multiple of the group.
        scheme: how.
        dtype: ARRAY is cast to it first, as mlx-lm casts a model before it quantizes it, and the
            scales of an affine scheme come in it. ``U8``, the dtype of the other modes' scales,
            leaves ARRAY as it is.
        global_scale: give each expert of a 3-axis nvfp4 weight a scale of its own, as mlx-lm does
            where its config says so.

    Raises:
        UnsupportedError: the last axis does not divide, there is only one, or MLX is not installed.
    """
    check_shape(array.shape, scheme)
    mx = _mlx()
    cast = _cast(array, dtype_of(dtype))
    if global_scale:
        return _quantize_experts(cast, scheme)
    made = mx.quantize(to_mlx(cast), **scheme.record)
    names = ("weight", "scales", "biases")
    return {name: from_mlx(part) for name, part in zip(names, made, strict=False)}


def by_mlx(parts: Parts, scheme: Scheme) -> Array:
    """Return what ``mx.dequantize`` makes of PARTS in the dtype of their scales, as mlx-lm does.

    Raises:
        UnsupportedError: MLX is not installed.
    """
    mx, kept = _mlx(), {part: to_mlx(array) for part, array in parts.items()}
    return from_mlx(mx.dequantize(kept.pop("weight"), **kept, **scheme.record))


def _quantize_experts(array: Array, scheme: Scheme) -> dict[str, Array]:
    """Follow `mlx_lm/models/switch_layers.py`, `_quantize_experts`."""
    mx = _mlx()
    largest = np.abs(array.astype(np.float32)).max(axis=(-2, -1))
    made = [
        mx.quantize(to_mlx(one), **scheme.record, global_scale=mx.array(scale))
        for one, scale in zip(array, largest, strict=True)
    ]
    weight, scales = (np.stack([from_mlx(it) for it in part]) for part in zip(*made, strict=True))
    return {"weight": weight, "scales": scales, "global_scale": largest}


def check_shape(shape: tuple[int, ...], scheme: Scheme) -> None:
    """Check that a weight of SHAPE can be quantized by SCHEME.

    Raises:
        UnsupportedError: it cannot.
    """
    if len(shape) < 2 or shape[-1] % scheme.group_size:
        raise UnsupportedError(
            f"a weight of shape {list(shape)} cannot be quantized as {scheme}: it takes two axes, the"
            " last a multiple of the group; leave it dense or choose another group"
        )


def layout(
    name: str, shape: tuple[int, ...], scheme: Scheme, dtype: Dtype, *, global_scale: bool = False
) -> dict[str, Header]:
    """Return the headers of the weight NAME of dense SHAPE quantized by SCHEME, by full name.

    Raises:
        UnsupportedError: such a weight cannot be quantized by SCHEME.

    >>> [f"{name} {header}" for name, header in layout("up.weight", (3, 64), Scheme(4, 32), "F16").items()]
    ['up.weight U32[3, 8]', 'up.scales F16[3, 2]', 'up.biases F16[3, 2]']
    """
    check_shape(shape, scheme)
    *lead, columns = shape
    groups = (*lead, columns // scheme.group_size)
    code = CODE[dtype_of(dtype)] if scheme.affine else "U8"
    made = {
        "weight": Header("U32", (*lead, columns * scheme.bits // 32)),
        "scales": Header(code, groups),
    }
    if scheme.affine:
        made["biases"] = Header(code, groups)
    if global_scale:
        made["global_scale"] = Header("F32", (lead[0],))
    return {part_name(name, part): header for part, header in made.items()}


def rounding(scheme: Scheme, code: str) -> float:
    """Return how far MLX moves a weight of SCHEME, in steps, when it reads it in the dtype CODE of its scales.

    By half of the last place of a value, which is up to ``2**bits - 1`` steps from another of its group.

    >>> rounding(Scheme(4, 64), "F16")
    0.00732421875
    """
    dtype = NUMPY[code] if code in FLOATS else np.dtype(ml_dtypes.bfloat16)
    return ((1 << scheme.bits) - 1) * unit_roundoff(dtype.name)


def step(parts: Parts, scheme: Scheme) -> float:
    """Return the distance between neighbouring values of a quantized weight, the median of it.

    Affine codes are one |scale| apart; floating-point codes the gap at each code times its scale.
    Taken of rows spread over the weight where that has more than a few million elements.
    """
    words, scales = _rows(parts["weight"]), _rows(parts["scales"])
    if scheme.affine:
        return float(np.median(np.abs(scales.astype(np.float32))))
    columns = scales.shape[-1] * scheme.group_size
    some = slice(None, None, max(1, len(words) * columns // SAMPLE))
    codes = unpack(words[some], scheme.bits).reshape(-1, scales.shape[-1], scheme.group_size)
    apart = gaps(scheme.mode)[codes] * SCALES[scheme.mode][scales[some]][..., None]
    factors = _factors(parts, len(words))
    return float(np.median(apart if factors is None else apart * factors[some, None, None]))


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return ARRAY in DTYPE, or as it is where that is the bytes' own; no wider than float32."""
    dtype = array.dtype if dtype == np.uint8 else dtype
    if dtype.itemsize > 4:
        dtype = np.dtype(np.float32)
    with np.errstate(over="ignore"):  # an infinity is the caller's
        return np.ascontiguousarray(array.astype(dtype, copy=False))


def _mlx() -> Any:
    try:
        import mlx.core as mx
    except ImportError as error:
        raise UnsupportedError(
            "quantizing is MLX's own; install it: pip install 'weighbridge[mlx]'"
        ) from error
    return mx
