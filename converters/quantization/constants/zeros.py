"""Biases as codes: which code of a group is worth zero, and how far that is from the bias."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedError
from ...values import Array
from .. import Blocks

Float64 = NDArray[np.float64]


class Zeros(NamedTuple):
    """An affine weight as ``scale * (code - zero)``, every scale positive.

    Attributes:
        codes: uint8, shape ``(rows, columns)``; those of a negative scale count from the other end.
        scales: shape ``(rows, groups)``, in the dtype of the weight's.
        zeros: float64, shape ``(rows, groups)``; whole numbers only where the biases allow.
    """

    codes: Array
    scales: Array
    zeros: Float64


def zeros_of(blocks: Blocks) -> Zeros:
    """Return BLOCKS, rows of an affine weight, with zeros in place of biases.

    Raises:
        UnsupportedError: a group has a bias and no scale, or numbers that are not finite.
    """
    scales, biases = blocks.parts["scales"], blocks.parts["biases"]
    wide, top = scales.astype(np.float64), (1 << blocks.scheme.bits) - 1
    if ((wide == 0) & (biases.astype(np.float64) != 0)).any() or not np.isfinite(wide).all():
        raise UnsupportedError(
            "a group of one value has no scale, so its bias is no multiple of it"
        )
    zeros = -np.divide(biases.astype(np.float64), wide, out=np.zeros_like(wide), where=wide != 0)
    turned = wide < 0
    grouped = blocks.codes().reshape(*scales.shape, -1)
    codes = np.where(turned[..., None], top - grouped, grouped).astype(np.uint8)
    return Zeros(codes.reshape(blocks.shape), np.abs(scales), np.where(turned, top - zeros, zeros))


def whole(zeros: Float64, most: int) -> tuple[Array, float]:
    """Return ZEROS as whole numbers, uint8, and the largest distance, in steps.

    Raises:
        UnsupportedError: one lies outside 0 to MOST.

    >>> whole(np.array([7.875, 8.0]), 15)
    (array([8, 8], dtype=uint8), 0.125)
    """
    found = np.rint(zeros)
    if found.size and (found.min() < 0 or found.max() > most):
        worst = found.min() if found.min() < 0 else found.max()
        raise UnsupportedError(f"zero is code {worst:.0f} of a group, and there are 0 to {most}")
    return found.astype(np.uint8), float(np.abs(found - zeros).max(initial=0.0))
