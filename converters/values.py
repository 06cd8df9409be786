"""What travels through a map: a dense array, a low-rank update, or quantized blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dense:
    """An ordinary array."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape


@dataclass(frozen=True, eq=False)
class LowRank:
    """A low-rank update of a weight, ``scale * b @ a`` (LoRA, Hu et al. 2021, section 4.1).

    Attributes:
        a: down projection, shape ``(rank, in)``.
        b: up projection, shape ``(out, rank)``.
        scale: the multiplier itself (PEFT's ``alpha / r``, mlx-lm's ``scale``).
        magnitude: DoRA row magnitudes, shape ``(out,)``; ``None`` for plain LoRA.
    """

    a: Array
    b: Array
    scale: float = 1.0
    magnitude: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape ``(out, in)`` of the weight that this updates."""
        return (self.b.shape[0], self.a.shape[1])

    @property
    def rank(self) -> int:
        """The inner dimension."""
        return int(self.a.shape[0])

    def delta(self) -> Array:
        """Return ``scale * b @ a`` in float64, shape ``(out, in)``.

        >>> LowRank(np.ones((2, 3)), np.ones((4, 2)), scale=0.5).delta().tolist()[0]
        [1.0, 1.0, 1.0]
        """
        return self.scale * (self.b.astype(np.float64) @ self.a.astype(np.float64))

    def rows(self, block: slice) -> LowRank:
        """Return the update of the rows BLOCK of the weight."""
        magnitude = None if self.magnitude is None else self.magnitude[block]
        return replace(self, b=self.b[block], magnitude=magnitude)

    def applied_to(self, base: Array) -> Array:
        """Return BASE with the update in it, in float64, shape ``(out, in)``.

        ``W + delta``; with magnitudes m ``m / ||W + delta|| * (W + delta)``, the norm taken by row
        (DoRA, Liu et al. 2024, equation 5). A row of zeros becomes NaN there.

        >>> LowRank(np.ones((1, 2)), np.ones((1, 1)), magnitude=np.array([5.0])).applied_to(
        ...     np.array([[2.0, 3.0]])
        ... ).tolist()
        [[3.0, 4.0]]
        """
        total: Array = base.astype(np.float64) + self.delta()
        if self.magnitude is None:
            return total
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = self.magnitude.astype(np.float64) / np.linalg.norm(total, axis=1)
            return np.asarray(factor[:, None] * total)


@dataclass(frozen=True, eq=False)
class Blocks:
    """A quantized weight: ``codes * scales + offsets`` per group along the last axis.

    Attributes:
        codes: unpacked integer codes, shape ``(..., columns)``.
        scales: one per group, shape ``(..., columns // group_size)``.
        offsets: like ``scales``; ``None`` for symmetric schemes.
        bits: width of a code.
        group_size: columns that share one scale.
    """

    codes: Array
    scales: Array
    offsets: Array | None
    bits: int
    group_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.codes.shape


Value = Dense | LowRank | Blocks
