"""Where and how linear algebra is computed: on the CPU, the only device that MLX has it on, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import mlx.core as mx

from ..gradients import with_gradient

_COMPLEX: Final = "MLX has no linear algebra of complex matrices; write a + ib as the real matrix [[a, -b], [b, a]]"


def precise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make FUNCTION of float arrays compute in float64 on the CPU; results have the first one's dtype.

    Whatever is not floating is passed on and handed back as it is.
    """

    @wraps(function)
    def apply(*operands: Any, **options: Any) -> Any:
        given = [*operands, *options.values()]
        dtype = next(x.dtype for x in given if isinstance(x, mx.array))
        if dtype == mx.complex64:
            raise TypeError(_COMPLEX)
        with mx.stream(mx.cpu):
            named = {name: _wide(x) for name, x in options.items()}
            found = function(*map(_wide, operands), **named)
            if isinstance(found, tuple):
                return tuple(x.astype(dtype) if _real(x) else x for x in found)
            return found.astype(dtype)

    return apply


def _wide(x: Any) -> Any:
    return x.astype(mx.float64) if _real(x) else x


def differentiable(
    function: Callable[..., Any], gradient: Callable[..., Any]
) -> Callable[..., Any]:
    """Do as ``with_gradient``, the gradient being computed on the CPU too."""

    def on_cpu(*given: Any) -> Any:
        with mx.stream(mx.cpu):
            return gradient(*given)

    return with_gradient(function, on_cpu)


def _real(x: Any) -> bool:
    return isinstance(x, mx.array) and bool(mx.issubdtype(x.dtype, mx.floating))


def transposed(x: mx.array) -> mx.array:
    """Return the matrices X transposed."""
    return mx.swapaxes(x, -1, -2)


def diagonal(values: mx.array) -> mx.array:
    """Return matrices with VALUES on their diagonals."""
    return values[..., :, None] * mx.eye(values.shape[-1], dtype=values.dtype)


def quotient(a: mx.array, b: mx.array) -> mx.array:
    """Return A / B, and 0 where A is 0: what an unused part of a gradient is."""
    zero = (a == 0) | (b == 0)
    return mx.where(zero, mx.zeros_like(a), a / mx.where(zero, mx.ones_like(b), b))
