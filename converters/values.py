"""What travels through a map: an array, or a low-rank update of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MismatchError, UnsupportedError

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

    Leading axes count matrices that are updated one by one, such as the experts of a layer.

    Attributes:
        a: down projection, shape ``(..., rank, in)``.
        b: up projection, shape ``(..., out, rank)``.
        scale: the multiplier itself (PEFT's ``alpha / r``, mlx-lm's ``scale``).
        magnitude: DoRA row magnitudes, shape ``(out,)``, of an update without leading axes;
            ``None`` for plain LoRA.
    """

    a: Array
    b: Array
    scale: float = 1.0
    magnitude: Array | None = None

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes, none for the update of one matrix."""
        return self.a.shape[:-2]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape ``(..., out, in)`` of the weight that this updates."""
        return (*self.lead, self.b.shape[-2], self.a.shape[-1])

    @property
    def rank(self) -> int:
        """The inner dimension."""
        return int(self.a.shape[-2])

    def delta(self) -> Array:
        """Return ``scale * b @ a`` in float64, shape ``(..., out, in)``.

        >>> LowRank(np.ones((2, 3)), np.ones((4, 2)), scale=0.5).delta().tolist()[0]
        [1.0, 1.0, 1.0]
        """
        return self.scale * (self.b.astype(np.float64) @ self.a.astype(np.float64))

    def rows(self, block: slice) -> LowRank:
        """Return the update of the rows BLOCK of the weight, or of each matrix."""
        magnitude = None if self.magnitude is None else self.magnitude[block]
        return replace(self, b=self.b[..., block, :], magnitude=magnitude)

    def part(self, index: int | tuple[int, ...]) -> LowRank:
        """Return the update at INDEX of the leading axes."""
        return replace(self, a=self.a[index], b=self.b[index])

    def transposed(self) -> LowRank:
        """Return the update of the weight with its last two axes swapped.

        Raises:
            UnsupportedError: there are DoRA magnitudes, which are of rows and would be of columns.

        >>> LowRank(np.ones((2, 3)), np.ones((4, 2))).transposed().shape
        (3, 4)
        """
        if self.magnitude is not None:
            raise UnsupportedError(
                "DoRA magnitudes are of rows, and a transposed weight has columns there;"
                " merge it with the program that trained it, and go on with the merged model"
            )
        return replace(self, a=np.swapaxes(self.b, -1, -2), b=np.swapaxes(self.a, -1, -2))

    def padded(self, rank: int) -> LowRank:
        """Return the same update with RANK, which is not smaller than its own; zeros are added.

        Raises:
            ValueError: RANK is smaller.

        >>> LowRank(np.ones((2, 3)), np.ones((4, 2))).padded(5).b.shape
        (4, 5)
        """
        more = rank - self.rank
        if more < 0:
            raise ValueError(f"rank {self.rank} cannot be padded to {rank}")
        if not more:
            return self
        rows = [(0, 0)] * len(self.lead) + [(0, more), (0, 0)]
        columns = [(0, 0)] * len(self.lead) + [(0, 0), (0, more)]
        return replace(self, a=np.pad(self.a, rows), b=np.pad(self.b, columns))

    def applied_to(self, base: Array) -> Array:
        """Return BASE with the update in it, in float64, shape ``(..., out, in)``.

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


def widest(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """Return a dtype that holds the numbers of all DTYPES, floating-point ones, as they are.

    >>> widest([np.dtype(np.float16), np.dtype(np.float16)])
    dtype('float16')
    """
    different = set(dtypes)
    if len(different) == 1:
        return different.pop()
    # No two of 16 bits hold each other's numbers.
    return max((np.result_type(np.float32, one) for one in different), key=lambda it: it.itemsize)


def with_scale(update: LowRank, scale: float) -> LowRank:
    """Return the same update with another SCALE, what is left of its own multiplied into ``b``.

    Exact where the ratio of the scales is a power of two. Otherwise ``b`` is computed in float64
    and rounded once, to float32, or kept in float64 if it was; never to 16 bits.

    Raises:
        UnsupportedError: the numbers would be too large.

    >>> with_scale(LowRank(np.ones((1, 2)), np.ones((2, 1), np.float16), 3.0), 1.0).b.dtype
    dtype('float32')
    """
    if update.scale == scale:
        return update
    ratio, own = update.scale / scale, update.b.astype(np.float64)
    whole = abs(math.frexp(ratio)[0]) == 0.5 and ratio * scale == update.scale  # a power of two
    wanted = own * ratio if whole else own * update.scale / scale
    with np.errstate(over="ignore"):
        b = wanted.astype(update.b.dtype)
        if not whole or not np.array_equal(b.astype(np.float64), wanted):
            b = wanted.astype(np.result_type(update.b.dtype, np.float32))
    if np.isfinite(own).all() and not np.isfinite(b).all():
        raise UnsupportedError(f"an update of scale {update.scale} has no form with scale {scale}")
    return replace(update, b=b, scale=scale)


def stack(updates: Sequence[LowRank]) -> LowRank:
    """Return UPDATES of weights of one shape as one, along a new first axis.

    Smaller ranks are padded with zeros, which is exact; the scale is that of the first one.

    Raises:
        UnsupportedError: there are DoRA magnitudes.
        MismatchError: the shapes differ.

    >>> two = [LowRank(np.ones((rank, 3)), np.ones((4, rank))) for rank in (1, 2)]
    >>> stack(two).shape, stack(two).rank
    ((2, 4, 3), 2)
    """
    if any(update.magnitude is not None for update in updates):
        raise UnsupportedError("DoRA magnitudes do not stack; merge the adapter instead")
    if shapes := {update.shape for update in updates[1:]} - {updates[0].shape}:
        raise MismatchError(
            f"only updates of one shape stack, here {list(updates[0].shape)}",
            [f"another is of shape {list(shape)}" for shape in sorted(shapes)],
        )
    rank = max(update.rank for update in updates)
    alike = [with_scale(update.padded(rank), updates[0].scale) for update in updates]
    a, b = widest(update.a.dtype for update in alike), widest(update.b.dtype for update in alike)
    return LowRank(
        np.stack([update.a.astype(a) for update in alike]),
        np.stack([update.b.astype(b) for update in alike]),
        updates[0].scale,
    )


Value = Dense | LowRank
