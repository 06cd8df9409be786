"""A quantized weight in memory: codes, what they are worth, and nothing rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...errors import BadInputError
from ..values import Array
from .codebooks import CODES, GLOBAL, SCALES
from .mlx import dequantize
from .packing import Codes, pack, unpack
from .scheme import Scheme


@dataclass(frozen=True, eq=False)
class Blocks:
    """A quantized weight, or some rows of one, in MLX's parts.

    Attributes:
        parts: ``weight``, uint32 words of codes, shape ``(..., columns * bits / 32)``; ``scales``,
            shape ``(..., columns / group)``; ``biases``, shaped so, of an affine scheme;
            ``global_scale``, of some nvfp4 weights.
        scheme: what they mean.
    """

    parts: Mapping[str, Array]
    scheme: Scheme

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight that this stands for."""
        *lead, groups = self.parts["scales"].shape
        return (*lead, groups * self.scheme.group_size)

    @classmethod
    def of_codes(cls, codes: Array, parts: Mapping[str, Array], scheme: Scheme) -> Self:
        """Return the weight of CODES, shape ``(..., columns)``, with its other PARTS.

        Raises:
            BadInputError: a code does not fit the bits of SCHEME.

        >>> parts = {"scales": np.ones((1, 1), "f4"), "biases": -8 * np.ones((1, 1), "f4")}
        >>> Blocks.of_codes(np.arange(32)[None] % 16, parts, Scheme(4, 32)).values()[0, :3].tolist()
        [-8.0, -7.0, -6.0]
        """
        if codes.size and not (codes.min() >= 0 and codes.max() < 1 << scheme.bits):
            worst = codes.max() if codes.min() >= 0 else codes.min()
            raise BadInputError(f"code {worst} does not fit {scheme.bits} bits")
        return cls({"weight": pack(codes, scheme.bits), **parts}, scheme)

    def codes(self) -> Codes:
        """Return the codes, uint8, shape ``(..., columns)``."""
        return unpack(self.parts["weight"], self.scheme.bits)

    def values(self) -> NDArray[np.float64]:
        """Return the canonical values in float64: ``code * scale + bias``, nothing rounded before.

        Codes, scales and biases of the schemes of MLX have so few digits that their product and its
        sum with a bias in the same dtype are exact in float64, unless the bias is many powers of two
        away.
        """
        grouped = self.codes().reshape(*self.parts["scales"].shape, self.scheme.group_size)
        scales = self.parts["scales"]
        if self.scheme.affine:
            worth = grouped * scales.astype(np.float64)[..., None]
            worth += self.parts["biases"].astype(np.float64)[..., None]
        else:
            mode = self.scheme.mode
            worth = CODES[mode].astype(np.float64)[grouped]
            worth = worth * SCALES[mode].astype(np.float64)[scales][..., None]
        if "global_scale" in self.parts:
            factor = self.parts["global_scale"].astype(np.float64) / GLOBAL
            worth *= factor.reshape(*factor.shape, *[1] * (worth.ndim - factor.ndim))
        values: NDArray[np.float64] = worth.reshape(self.shape)
        return values

    def dense(self) -> NDArray[np.float32]:
        """Return the canonical values rounded to float32 once, rows at a time."""
        return dequantize(self.parts, self.scheme)
