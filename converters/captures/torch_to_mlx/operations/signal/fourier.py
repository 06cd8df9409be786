"""Fourier transforms without scale, of which torch's own decompositions make all others, and stft."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from ..axes import at
from ..registry import register

# torch's codes: no scale, by 1 / sqrt(n), by 1 / n
_SCALES: dict[int, Callable[[int], float]] = {
    0: lambda _: 1.0,
    1: lambda count: 1 / math.sqrt(count),
    2: lambda count: 1 / count,
}


def _count(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[d] for d in dims)


def complex_to_complex(x: mx.array, dims: Sequence[int], forward: bool) -> mx.array:
    """Return the sum over DIMS of X times exp(-i k n), or exp(i k n) backward."""
    axes = [d % x.ndim for d in dims]
    x = x.astype(mx.complex64)
    if forward:
        return mx.fft.fftn(x, axes=axes)
    return mx.fft.ifftn(x, axes=axes) * _count(x.shape, axes)


def _onesided(x: mx.array, dim: int) -> mx.array:
    return x[at(x, dim, slice(x.shape[dim] // 2 + 1))]


def real_to_complex(x: mx.array, dims: Sequence[int], onesided: bool) -> mx.array:
    """Transform real X; ONESIDED keeps the first half of the last of DIMS."""
    found = complex_to_complex(x, dims, forward=True)
    return _onesided(found, dims[-1]) if onesided else found


def complex_to_real(x: mx.array, dims: Sequence[int], length: int) -> mx.array:
    """Transform the first half of a Hermitian X back to LENGTH real numbers along the last of DIMS."""
    *others, last = (d % x.ndim for d in dims)
    if not x.size:
        return mx.zeros([length if d == last else size for d, size in enumerate(x.shape)])
    x = complex_to_complex(x, others, forward=False) if others else x.astype(mx.complex64)
    half = length // 2 + 1
    x = x[at(x, last, slice(half))]
    mirrored = mx.conj(x[at(x, last, slice(1, (length + 1) // 2))])
    order = mx.arange(mirrored.shape[last] - 1, -1, -1)
    mirror = [mx.take(mirrored, order, axis=last)] if mirrored.size else []
    first, rest = x[at(x, last, slice(1))], x[at(x, last, slice(1, None))]
    first = mx.real(first).astype(
        mx.complex64
    )  # as numpy and torch: its imaginary part is not read
    whole = mx.concatenate([first, rest, *mirror], axis=last)
    return mx.real(complex_to_complex(whole, [last], forward=False))


def _scaled(transform: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def apply(self: mx.array, dim: Sequence[int], normalization: int, **options: Any) -> mx.array:
        shape = list(self.shape)
        if "last_dim_size" in options:
            shape[dim[-1]] = options["last_dim_size"]
        return transform(self, dim, *options.values()) * _SCALES[normalization](_count(shape, dim))

    return apply


_c2c, _r2c, _c2r = map(_scaled, (complex_to_complex, real_to_complex, complex_to_real))
register(
    {
        "_fft_c2c": lambda self, dim, normalization, forward: _c2c(
            self, dim, normalization, forward=forward
        ),
        "_fft_r2c": lambda self, dim, normalization, onesided: _r2c(
            self, dim, normalization, onesided=onesided
        ),
        "_fft_c2r": lambda self, dim, normalization, last_dim_size: _c2r(
            self, dim, normalization, last_dim_size=last_dim_size
        ),
    }
)
register({"prims.fft_c2c.default": complex_to_complex}, arity=3)
register({"prims.fft_r2c.default": real_to_complex}, arity=3)
register({"prims.fft_c2r.default": complex_to_real}, arity=3)
