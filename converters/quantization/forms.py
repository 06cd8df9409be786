"""In which form a merged weight may be kept: as it was, in 8 bits, or in floating point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import Header
from ..common.dtypes import NUMPY
from ..values import Array
from . import Dequantized, Scheme, dequantize, layout, quantize
from .rounding import round_once

Parts = dict[str, Array]
Float64 = NDArray[np.float64]
WEIGHT: Final = "weight"
PROMOTED: Final = Scheme(8, 64)
NARROW: Final = ("F16", "BF16")
FINE: Final = "F16"  # at 8 bits bfloat16 scales lose a third more than the codes do
WIDE: Final = "F32"


class Form(NamedTuple):
    """How a weight is stored.

    Attributes:
        scheme: of its codes; ``None`` for a dense weight.
        dtype: of its scales, or of the dense weight.
        global_scale: whether each expert has a scale of its own, which nvfp4 offers.
        refitted: whether codes are chosen again once the scales are rounded, which MLX's own
            rounding does not do.
    """

    scheme: Scheme | None
    dtype: str
    global_scale: bool = False
    refitted: bool = False

    def __str__(self) -> str:
        """Print as ``8-bit affine, groups of 64, F16 scales`` or ``F16``."""
        if self.scheme is None:
            return self.dtype
        return f"{self.scheme}, {self.dtype} scales" if self.scheme.affine else str(self.scheme)

    def layout(self, name: str, shape: tuple[int, ...]) -> dict[str, Header]:
        """Return the headers of the tensors that store the weight NAME of SHAPE."""
        if self.scheme is None:
            return {name: Header(self.dtype, shape)}
        return layout(name, shape, self.scheme, self.dtype, global_scale=self.global_scale)

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes that a weight of SHAPE takes.

        >>> Form(Scheme(4, 64), "F16").nbytes((64, 64)), Form(None, "F16").nbytes((64, 64))
        (2304, 8192)
        """
        return sum(header.nbytes for header in self.layout("x.weight", shape).values())

    def encode(self, values: Float64) -> Parts:
        """Return the parts that store VALUES, rows of a weight, each number rounded once.

        Codes are chosen by MLX in float32 and the scales rounded then: a weight that is cast to 16
        bits first, as mlx-lm casts it, loses small updates before there is a code.
        """
        if self.scheme is None:
            return {WEIGHT: round_once(values, NUMPY[self.dtype])}
        wide = values.astype(np.float32)
        if self.global_scale:  # of one expert, whole
            made = quantize(wide[None], self.scheme, WIDE, global_scale=True)
            return {part: array[0] for part, array in made.items()}
        made = quantize(wide, self.scheme, WIDE)
        if self.scheme.affine:
            with np.errstate(over="ignore"):  # an infinity is found by whoever decodes
                for part in ("scales", "biases"):
                    made[part] = made[part].astype(NUMPY[self.dtype])
        return refit(made, wide, self.scheme) if self.refitted else made

    def decode(self, parts: Mapping[str, Array]) -> Float64:
        """Return the canonical values of PARTS."""
        if self.scheme is None:
            return parts[WEIGHT].astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinite scales: the caller looks for them
            return dequantize(parts, self.scheme).astype(np.float64)


def refit(parts: Parts, values: Array, scheme: Scheme) -> Parts:
    """Return the 8-bit affine PARTS of VALUES with the codes that are nearest by their scales.

    MLX chooses codes by float32 scales and rounds these to 16 bits afterwards, so that its codes
    are off by as much as the rounding times 255.
    """
    assert scheme.bits == 8  # noqa: S101  (then a code is a byte)
    scales, biases = (np.asarray(parts[it], np.float32)[..., None] for it in ("scales", "biases"))
    grouped = values.reshape(*scales.shape[:-1], scheme.group_size)
    with np.errstate(all="ignore"):
        codes = np.rint((grouped - biases) / scales)
    codes = np.clip(np.nan_to_num(codes), 0, 255).astype(np.uint8)
    return {**parts, WEIGHT: codes.reshape(values.shape).view("<u4")}


def own_form(tensors: Dequantized, name: str) -> Form:
    """Return the form that the weight NAME has in TENSORS."""
    scheme = tensors.schemes.get(name)
    if scheme is None:
        return Form(None, tensors.headers[name].dtype)
    names = tensors.part_names(name)
    return Form(scheme, tensors.raw.headers[names["scales"]].dtype, "global_scale" in names)


def common_dtype(tensors: Dequantized) -> str:
    """Return the dtype that most floating-point numbers are stored in, scales included."""
    count = dict.fromkeys((*NARROW, WIDE), 0)
    for header in tensors.raw.headers.values():
        if header.dtype in count:
            count[header.dtype] += prod(header.shape)
    return max(count, key=lambda dtype: count[dtype])


def wider(own: Form, shape: tuple[int, ...], common: str) -> Iterator[Form]:
    """Yield forms that hold more of a weight of SHAPE than OWN does, the smallest first.

    Of one size the first is the one in the COMMON dtype of the model: MLX computes in float32 from
    a layer on that has another 16-bit dtype than what reaches it.
    """
    dtypes = sorted({*NARROW, common} - {WIDE}, key=lambda dtype: dtype != common)
    if own.scheme and len(shape) > 1 and shape[-1] % PROMOTED.group_size == 0:
        scales = (common if common in NARROW else FINE, FINE)
        eight = (Form(PROMOTED, dtype, refitted=True) for dtype in scales)
        yield from (form for form in dict.fromkeys(eight) if not covers(own, form))
    forms = (Form(None, dtype) for dtype in (*dtypes, WIDE))
    yield from (form for form in forms if own.scheme or not covers(own, form))


def covers(own: Form, other: Form) -> bool:
    """Say whether OWN is as fine as OTHER, so that there is no point in it.

    >>> covers(Form(Scheme(8, 32), "F16"), Form(Scheme(8, 64), "F16"))
    True
    """
    same = own.dtype in (other.dtype, WIDE)
    if own.scheme is None or other.scheme is None:
        return same and own.scheme == other.scheme
    if not own.scheme.affine or own.scheme.bits < other.scheme.bits:
        return False
    return own.scheme.group_size <= other.scheme.group_size and (same or own.dtype == FINE)
