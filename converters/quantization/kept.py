"""The grid that a quantized weight has: rounding to it moves codes, and no scale and no bias.

The arithmetic is that of any library whose module has numpy's functions: of numpy in float64 where an
adapter is merged, of MLX and PyTorch in float32 where one is trained by what the merge will make of it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from ..values import Array
from .blocks import Blocks
from .codebooks import CODES, GLOBAL, SCALES
from .scheme import Scheme

# Of E2M1 and E4M3: digits after the point, the exponent of the smallest normal numbers, the largest number.
FLOATS: Final = {"mxfp4": (1, 0, 6.0), "mxfp8": (3, -6, 448.0), "nvfp4": (1, 0, 6.0)}


class Grid(NamedTuple):
    """Where the values of a quantized weight lie.

    Attributes:
        worth: what each code is worth before its scale: an affine code its own number; shape
            ``(..., groups, group)``.
        scales: of the groups, ``(..., groups, 1)``.
        values: of the codes, ``(..., groups, group)``.
        scheme: of the codes.
    """

    worth: Any
    scales: Any
    values: Any
    scheme: Scheme

    def nearest(self, wanted: Any, library: Any) -> Any:
        """Return what the codes nearest to WANTED are worth before their scales, shaped as ``worth``.

        A code moves by the rounded number of scales that its value is to move by. A group whose scale is
        zero stays as it is.

        Args:
            wanted: the weight that is to be stored.
            library: whose arrays they are: ``numpy``, ``mlx.core`` or ``torch``.
        """
        still = self.scales == 0
        change = wanted.reshape(self.worth.shape) - self.values
        steps = change / library.where(still, 1.0, self.scales)
        return nearest(self.worth + library.where(still, 0.0, steps), self.scheme, library)

    def rounded(self, wanted: Any, library: Any) -> Any:
        """Return WANTED with every number rounded to a value that a code of its group has."""
        moved = (self.nearest(wanted, library) - self.worth) * self.scales
        return (self.values + moved).reshape(wanted.shape)

    def narrow(self) -> Grid:
        """Return it in float32, as training computes with it."""
        worth, scales, values = (it.astype(np.float32) for it in self[:3])
        return Grid(worth, scales, values, self.scheme)


def nearest(numbers: Any, scheme: Scheme, library: Any) -> Any:
    """Return of NUMBERS, in scales, the nearest that a code of SCHEME is worth; of two, the even one.

    >>> nearest(np.array([-1.0, 2.5, 2.6, 99.0]), Scheme(4, 64), np).tolist()
    [0.0, 2.0, 3.0, 15.0]
    >>> nearest(np.array([0.3, 2.4, 5.1, -99.0]), Scheme(4, 32, "mxfp4"), np).tolist()
    [0.5, 2.0, 6.0, -6.0]
    """
    if scheme.affine:
        return library.clip(library.round(numbers), 0.0, float((1 << scheme.bits) - 1))
    digits, least, largest = FLOATS[scheme.mode]
    sizes, gaps = library.abs(numbers), 2.0 ** (least - digits)
    for exponent in range(least + 1, int(np.log2(largest)) + 1):  # sums of powers of two are exact
        gaps = gaps + (sizes >= 2.0**exponent) * 2.0 ** (exponent - 1 - digits)
    return library.clip(library.round(numbers / gaps) * gaps, -largest, largest)


def grid_of(blocks: Blocks) -> Grid:
    """Return the grid of BLOCKS in float64."""
    scheme, scales = blocks.scheme, blocks.parts["scales"]
    shape = (*scales.shape, scheme.group_size)
    codes = blocks.codes().reshape(shape)
    values = blocks.values().reshape(shape)
    if scheme.affine:
        return Grid(codes.astype(np.float64), scales.astype(np.float64)[..., None], values, scheme)
    wide = SCALES[scheme.mode].astype(np.float64)[scales]
    if "global_scale" in blocks.parts:
        factor = blocks.parts["global_scale"].astype(np.float64) / GLOBAL
        wide = wide * factor.reshape(*factor.shape, *[1] * (wide.ndim - factor.ndim))
    return Grid(CODES[scheme.mode].astype(np.float64)[codes], wide[..., None], values, scheme)


def moved_codes(blocks: Blocks, wanted: Array) -> Blocks:
    """Return BLOCKS with the codes that are nearest to WANTED, everything else as it is.

    Codes whose value does not change are those of BLOCKS, the sign of a zero included.
    """
    grid, scheme = grid_of(blocks), blocks.scheme
    with np.errstate(invalid="ignore"):  # what is not finite is found by whoever decodes
        worth = grid.nearest(wanted.astype(np.float64), np)
    codes = worth if scheme.affine else _codes(worth, scheme.mode)
    fresh = np.where(worth == grid.worth, blocks.codes().reshape(worth.shape), codes)
    others = {part: array for part, array in blocks.parts.items() if part != "weight"}
    whole = np.nan_to_num(fresh).astype(np.uint8).reshape(blocks.shape)
    return Blocks.of_codes(whole, others, scheme)


def _codes(worth: Array, mode: str) -> Array:
    """Return the codes of MODE that are WORTH that much."""
    order = np.argsort(CODES[mode], kind="stable")  # NaN last
    places = np.searchsorted(CODES[mode][order], np.nan_to_num(worth))
    found: Array = order[places]
    return found
