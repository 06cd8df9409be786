"""Which ggml type holds a quantized weight of MLX, and how far from it: known from its scales alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...quantization import Scheme
from ...quantization.rounding import is_multiple, round_once
from ...values import Array
from .decoding import MOST_SCALE
from .layouts import BLOCKS

Parts = Mapping[str, Array]
Float64 = NDArray[np.float64]
# Bits of an affine scheme -> types that hold its codes, the smallest first.
AFFINE: Final[Mapping[int, tuple[str, ...]]] = {
    2: ("Q4_0", "Q4_1"),
    3: ("Q4_0", "Q4_1"),
    4: ("Q4_0", "Q4_1"),
    5: ("Q5_0", "Q5_1"),
    6: ("Q8_0",),
    8: ("Q8_0",),
}
MULTIPLIERS: Final = ("scales", "biases")
INFINITE: Final = np.uint16(0x7C00)  # exponent of a float16 that is infinite or no number
FLOATS: Final = {"mxfp4": "MXFP4", "nvfp4": "NVFP4"}


class Route(NamedTuple):
    """How a weight, or some rows of it, would be stored.

    Attributes:
        kind: the ggml type.
        error: the largest distance of a value from the exact one, in steps of its group; 0 where
            every value is kept, infinite where the type cannot hold them.
    """

    kind: str
    error: float

    @property
    def exact(self) -> bool:
        """Whether every value is kept."""
        return self.error == 0


def routes(scheme: Scheme, columns: int) -> tuple[str, ...]:
    """Return the ggml types that may hold the codes of rows of COLUMNS, the smallest first.

    >>> routes(Scheme(4, 64), 128), routes(Scheme(4, 16, "nvfp4"), 96)
    (('Q4_0', 'Q4_1'), ())
    """
    kinds = AFFINE[scheme.bits] if scheme.affine else (FLOATS.get(scheme.mode, ""),)
    return tuple(kind for kind in kinds if kind and columns % BLOCKS[kind].size == 0)


def route(parts: Parts, scheme: Scheme, kind: str) -> Route:
    """Return how far the rows whose scales and biases are in PARTS would be from themselves in KIND.

    >>> parts = {"scales": np.full((1, 1), 0.5, "f2"), "biases": np.full((1, 1), -4, "f2")}
    >>> route(parts, Scheme(4, 32), "Q4_0").exact
    True
    """
    if not scheme.affine:
        scales = parts["scales"]
        fits = "global_scale" not in parts and not (scales > MOST_SCALE[kind]).any()
        return Route(kind, 0.0 if fits else np.inf)
    if _kept(parts, scheme, kind):
        return Route(kind, 0.0)
    scales, biases = (parts[it].astype(np.float64) for it in MULTIPLIERS)
    narrow = _narrow(scales)
    with np.errstate(all="ignore"):
        low = _lowest(scales, biases, narrow, scheme, kind) - biases
        high = low + ((1 << scheme.bits) - 1) * (narrow - scales)
        farthest = np.maximum(np.abs(low), np.abs(high))
        steps = np.where(farthest == 0, 0.0, farthest / np.abs(scales))
    return Route(kind, float(np.nan_to_num(steps.max(initial=0.0), nan=np.inf, posinf=np.inf)))


def _kept(parts: Parts, scheme: Scheme, kind: str) -> bool:
    """Tell whether float16 holds the scales, and the biases or a zero that all groups have, as they are.

    Most models are so, and this takes a fifth of the time of asking how far off every group is.
    """
    if BLOCKS[kind].center is None:
        return all(_half(parts[it]) for it in MULTIPLIERS)
    scales, biases = (parts[it] for it in MULTIPLIERS)
    if scales.dtype == biases.dtype and is_multiple(biases, scales, scheme.bits - 1):
        return bool(_fits(np.array([-(1 << scheme.bits) / 2]), scheme, kind)) and _half(scales)
    scales, biases = (array.astype(np.float32, copy=False) for array in (scales, biases))
    zero = _integer(*(array.ravel()[:1].astype(np.float64) for array in (scales, biases)))
    if not _fits(zero, scheme, kind).all() or not _half(scales):
        return False
    return np.array_equal(scales * zero.astype(np.float32), biases)


def _half(numbers: Array) -> bool:
    """Tell whether float16 holds NUMBERS as they are, and all are finite."""
    if numbers.dtype != np.float16:
        with np.errstate(over="ignore"):
            narrow = numbers.astype(np.float16)
        if not np.array_equal(narrow.astype(np.float32), numbers.astype(np.float32, copy=False)):
            return False
        numbers = narrow
    return not ((numbers.view(np.uint16) & INFINITE) == INFINITE).any()


def shifted(parts: Parts, scheme: Scheme, kind: str) -> NDArray[np.uint8]:
    """Return what is added to the codes of each group, shape of the scales, to store them as KIND."""
    center = BLOCKS[kind].center
    if center is None or not scheme.affine:
        return np.zeros(parts["scales"].shape, np.uint8)
    scales, biases = (parts[it].astype(np.float64) for it in MULTIPLIERS)
    shifts = center + _integer(scales, biases)
    return np.clip(shifts, 0, 255).astype(np.uint8)


def _lowest(
    scales: Float64, biases: Float64, narrow: Float64, scheme: Scheme, kind: str
) -> Float64:
    """Return what code 0 would be worth in each group; NaN where the codes leave those of KIND."""
    layout = BLOCKS[kind]
    if layout.center is None:
        return _narrow(biases)
    zero = _integer(scales, biases)
    return np.where(_fits(zero, scheme, kind), zero * narrow, np.nan)


def _fits(zero: Float64, scheme: Scheme, kind: str) -> NDArray[np.bool_]:
    """Tell where codes of SCHEME that are moved by ZERO are still codes of KIND, which has a center."""
    layout = BLOCKS[kind]
    shift = (layout.center or 0) + zero
    found: NDArray[np.bool_] = (shift >= 0) & (
        shift <= (1 << layout.scheme.bits) - (1 << scheme.bits)
    )
    return found


def _integer(scales: Float64, biases: Float64) -> Float64:
    """Return the whole number of scales that is nearest to each bias."""
    with np.errstate(all="ignore"):
        return np.where(biases == 0, 0.0, np.rint(biases / scales))


def _narrow(numbers: Float64) -> Float64:
    found: Float64 = round_once(numbers, np.dtype(np.float16)).astype(np.float64)
    return found
