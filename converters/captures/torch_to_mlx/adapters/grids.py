"""Adapted weights rounded as they are trained: to the codes that a merge of the adapter will store.

The gradient passes the rounding as if there were none, a straight-through estimator (Bengio et al. 2013).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from ....quantization.codebooks import SCALES
from ....quantization.kept import Grid
from ..parameters import Location
from ..quantized.value import Parts, Quantized

ONE: Final = {"mxfp4": 127, "mxfp8": 127, "nvfp4": 56}  # the byte of a scale that is worth 1


@dataclass(frozen=True)
class Rounding:
    """The grid of a quantized weight, and where the weight before its update is.

    Attributes:
        blocks: whose scales and biases stay; in float32.
        dense: the weight, where it is not that of BLOCKS but what they were made from.
    """

    blocks: Quantized
    dense: Location | None = None

    def weight(self) -> mx.array:
        """Return the weight before its update, in float32."""
        return self.dense.get().astype(mx.float32) if self.dense else self.blocks.dense()

    def rounded(self, wanted: mx.array) -> mx.array:
        """Return WANTED, float32, at the nearest values of the grid; its gradient is that of WANTED."""
        values: mx.array = mx.stop_gradient(self._grid().rounded(wanted, mx))
        return values + (
            wanted - mx.stop_gradient(wanted)
        )  # the latter is nothing but its gradient

    def _grid(self) -> Grid:
        """Return the grid in arrays of MLX: codes are what they are worth with scales of 1."""
        (weight, scales, _), scheme = self.blocks.parts, self.blocks.scheme
        shape = (*scales.shape, scheme.group_size)
        if scheme.affine:
            wide = scales.astype(mx.float32)
            ones = Parts(weight, mx.ones_like(wide), mx.zeros_like(wide))
        else:
            wide = mx.array(SCALES[scheme.mode])[scales]
            ones = Parts(weight, mx.full(scales.shape, ONE[scheme.mode], mx.uint8))
        worth = Quantized(ones, scheme, mx.float32).dense()
        values = self.blocks.dense()
        return Grid(worth.reshape(shape), wide[..., None], values.reshape(shape), scheme)
