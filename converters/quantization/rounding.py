"""Rounding from float64 to a narrower dtype, once."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..values import Array
from .workspace import Room

Float64 = NDArray[np.float64]

NATIVE: Final = "efd"  # numpy's own float16, 32 and 64, which numpy rounds once
BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
CUT: Final = np.uint64(52 - 7)  # bits of a float64 that a bfloat16 does not have
LARGE: Final = 2.0**1000  # far beyond bfloat16, where it is infinite; NaN is not less
NORMAL: Final = 2.0**-126  # the smallest number that has all digits, in bfloat16
HALF: Final = np.dtype(np.float16)
GONE: Final = np.uint32(23 - 10)  # bits of a float32 that a float16 does not have
# Bits of float32 numbers: all but the sign; the smallest float16 that has all digits; the first that is
# rounded to infinity; and by how much exponents of float32 are larger, less half of the last place.
SIZE, SMALL, INFINITE = np.uint32((1 << 31) - 1), np.uint32(0x38800000), np.uint32(0x477FF000)
TINY: Final = np.float32(2.0 ** (15 - 127))
MOVED: Final = np.uint32((127 - 15 << 23) - ((1 << 12) - 1))


def round_once(values: Array, dtype: np.dtype[Any], room: Room | None = None) -> Array:
    """Return VALUES, in float32 or 64, rounded to nearest, ties to even, in the floating-point DTYPE.

    From float64 ml_dtypes goes through float32 or float16 and so rounds twice. Here the rounding is
    done in float64, to a multiple of the spacing that DTYPE has at each value; the cast is exact
    then. What is returned lies in ROOM if there is one.

    >>> above_a_tie = np.array([1 + 2.0**-8 + 2.0**-40])
    >>> bfloat16 = np.dtype(ml_dtypes.bfloat16)
    >>> float(above_a_tie.astype(bfloat16)[0]), float(round_once(above_a_tie, bfloat16)[0])
    (1.0, 1.0078125)
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are the caller's
        room = room or Room()
        if dtype == HALF and values.dtype == np.float32:
            return _half(np.asarray(values, order="C"), room)  # one number stays without axes
        if dtype == BFLOAT16 and values.size and values.dtype == np.float64:
            values = _cut(values, room)
        elif dtype.char not in NATIVE and values.dtype == np.float64:
            values = _on_grid(values, dtype)
        return room.copy("rounded", values, dtype)


def is_multiple(products: Array, numbers: Array, power: int) -> bool:
    """Tell whether each of PRODUCTS is exactly ``-2**power`` times its one of NUMBERS, which is not zero.

    Both have one floating-point dtype. Told by their bits, in a tenth of the time that numpy takes to widen
    float16, but for the few numbers whose exponent is not simply the higher one.

    >>> halves = np.float16([0.5, -3, 1e-6])
    >>> is_multiple(halves * np.float16(-8), halves, 3), is_multiple(halves, halves, 3)
    (True, False)
    """
    info: Any = ml_dtypes.finfo(numbers.dtype)  # type: ignore[no-untyped-call]
    kind = np.dtype(f"u{numbers.itemsize}").type
    sign, least = kind(1 << (info.bits - 1)), kind(1 << info.nmant)
    above = kind(((1 << info.nexp) - 1 - power) << info.nmant)
    bits = numbers.reshape(-1).view(kind)
    sizes = bits & (sign - kind(1))
    sizes -= least
    odd = np.flatnonzero(
        sizes >= above - least
    )  # zero, subnormal, and what is not finite or would not be
    wanted = np.add(bits, kind(power << info.nmant), out=sizes)
    wanted ^= sign
    there = products.reshape(-1).view(kind)
    if odd.size and not _is_multiple(
        there.view(products.dtype)[odd], bits.view(numbers.dtype)[odd], power
    ):
        return False
    wanted[odd] = there[odd]
    return bool((wanted == there).all())


def _is_multiple(products: Array, numbers: Array, power: int) -> bool:
    wide = numbers.astype(np.float64)
    return bool(wide.all()) and np.array_equal(products.astype(np.float64), wide * -(2.0**power))


def _on_grid(values: Float64, dtype: np.dtype[Any]) -> Float64:
    """Return VALUES rounded to what DTYPE has, subnormal numbers included, in float64."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    exponent = np.frexp(values)[1] - 1
    spacing = np.maximum(exponent, info.minexp) - info.nmant  # as a power of two
    rounded: Float64 = np.ldexp(np.rint(np.ldexp(values, -spacing)), spacing)
    return rounded


def _cut(values: Float64, room: Room) -> Array:
    """Return VALUES rounded to what bfloat16 has, in float32; in a sixth of the time, on their bits.

    Half of the last place is added, less one bit where that is even, and the rest cut off: a carry
    goes into the exponent, where it belongs. Not so for subnormal numbers and for NaN.
    """
    sizes = np.abs(values, out=room("sizes", values.shape, np.float64))
    if not sizes.max() < LARGE:
        return _on_grid(values, BFLOAT16)
    tiny = np.flatnonzero(sizes < NORMAL) if sizes.min() < NORMAL else None
    bits = values.view(np.uint64)
    rounded = sizes.view(np.uint64)  # its room, not needed any more
    np.right_shift(bits, CUT, out=rounded)
    rounded &= np.uint64(1)
    rounded += (np.uint64(1) << (CUT - np.uint64(1))) - np.uint64(1)
    rounded += bits
    rounded >>= CUT
    rounded <<= CUT
    if tiny is not None:
        sizes.flat[tiny] = _on_grid(values.flat[tiny], BFLOAT16)
    return room.copy("narrower", sizes, np.float32)  # from where the cast is fast


def _half(values: NDArray[np.float32], room: Room) -> Array:
    """Return VALUES in float16, on their bits as in :func:`_cut`; numpy takes four times as long.

    Numbers that are subnormal or infinite in float16, and NaN, are left to numpy.
    """
    bits, shape = values.view(np.uint32), values.shape
    sizes = np.bitwise_and(bits, SIZE, out=room("sizes", shape, np.uint32))
    rounded = room("bits", shape, np.uint32)
    odd = _odd(sizes, rounded)
    if odd.size > sizes.size // 4:
        return room.copy("rounded", values, HALF)
    np.right_shift(sizes, GONE, out=rounded)
    rounded &= np.uint32(1)
    rounded += sizes
    np.maximum(rounded, MOVED, out=rounded)  # zero stays zero
    rounded -= MOVED
    rounded >>= GONE
    sizes ^= bits
    sizes >>= np.uint32(16)
    rounded |= sizes
    made = room.copy("rounded", rounded, np.uint16).view(np.float16)
    if odd.size:
        made.reshape(-1)[odd] = values.reshape(-1)[odd]
    return made


def keeps_subnormal() -> bool:
    """Tell whether this thread computes with subnormal numbers: some libraries have the processor take them for 0."""
    least = np.finfo(np.float32).smallest_normal
    return bool(np.multiply(least, np.float32(0.5)) != 0)


def half_of_tiny(values: NDArray[np.float32], room: Room) -> Array:
    """Return VALUES, ``TINY`` times what is meant and finite in float16, in it; they are overwritten.

    Exponents that small are those of float16, subnormal numbers included: half as many steps as
    :func:`_half` takes.
    """
    bits = values.view(np.uint32)
    rounded = np.right_shift(bits, GONE, out=room("bits", bits.shape, np.uint32))
    rounded &= np.uint32(1)
    rounded += bits
    rounded += np.uint32((1 << 12) - 1)
    rounded >>= GONE
    bits >>= np.uint32(16)
    bits &= np.uint32(1 << 15)  # the sign
    rounded |= bits
    return room.copy("rounded", rounded, np.uint16).view(HALF)


def _odd(sizes: NDArray[np.uint32], less: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Return where numbers with the bits SIZES are subnormal or infinite in float16; LESS is room for as many."""
    np.subtract(sizes, np.uint32(1), out=less)  # of zero the largest
    if less.min(initial=SMALL) >= SMALL - 1 and sizes.max(initial=0) < INFINITE:
        return np.empty(0, np.intp)
    return np.flatnonzero((less < SMALL - 1) | (sizes >= INFINITE))
