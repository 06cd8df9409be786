"""Functions with a gradient of their own, where MLX has none or another than torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import mlx.core as mx

Gradient = Callable[..., mx.array | tuple[mx.array | None, ...]]

_FORWARD_ONLY = ContextVar("forward_only", default=False)


@contextmanager
def forward_only() -> Iterator[None]:
    """Leave the gradients away inside: MLX cannot export functions that have their own."""
    token = _FORWARD_ONLY.set(True)
    try:
        yield
    finally:
        _FORWARD_ONLY.reset(token)


class Custom:
    """A function of arrays whose gradient is set by ``vjp``, as with ``mx.custom_function``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._plain, self._custom = function, mx.custom_function(function)

    def __call__(self, *operands: mx.array) -> Any:
        """Return the function of OPERANDS."""
        return self._plain(*operands) if _FORWARD_ONLY.get() else self._custom(*operands)

    def vjp(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        """Take GRADIENT (operands, cotangent, result) as the function's; it may decorate one."""
        self._custom.vjp(gradient)
        return gradient


def with_gradient(function: Callable[..., Any], gradient: Gradient) -> Custom:
    """Return FUNCTION of arrays with the GRADIENT (cotangent, result, *operands) -> one per operand.

    ``None`` is no gradient. Operands come as they are; see ``elementwise`` for those that broadcast.
    """
    custom = Custom(function)

    @custom.vjp
    def _(operands: Any, cotangent: Any, result: Any) -> Any:
        given = operands if isinstance(operands, tuple | list) else (operands,)
        found = gradient(_conjugate(cotangent), result, *given)
        if not isinstance(found, tuple):
            return _conjugate(found)
        return tuple(
            mx.zeros_like(x) if g is None else _conjugate(g)
            for g, x in zip(found, given, strict=True)
        )

    return custom


def _conjugate(x: Any) -> Any:
    """Return X, conjugated where it is complex: torch's gradient is that of the formula for real numbers, of conjugates."""
    return mx.conj(x) if isinstance(x, mx.array) and x.dtype == mx.complex64 else x


def holomorphic(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Return FUNCTION with torch's gradient for complex operands, where MLX's own leaves out the conjugate."""

    def back(cotangent: mx.array, _: mx.array, *operands: mx.array) -> Any:
        return tuple(mx.vjp(function, [*operands], [cotangent])[1])

    custom = with_gradient(function, back)

    def apply(*operands: mx.array) -> mx.array:
        complex_ = any(x.dtype == mx.complex64 for x in operands)
        result: mx.array = custom(*operands) if complex_ else function(*operands)
        return result

    return apply


def elementwise(function: Callable[..., mx.array], gradient: Gradient) -> Callable[..., mx.array]:
    """Do as ``with_gradient`` with operands that are broadcast first, numbers among them."""
    custom = with_gradient(function, gradient)

    def apply(*operands: Any) -> mx.array:
        result: mx.array = custom(*alike(operands))
        return result

    return apply


def alike(operands: Sequence[Any]) -> list[mx.array]:
    """Return OPERANDS as arrays of one shape, numbers in the dtype of the first array."""
    dtype = next((x.dtype for x in operands if isinstance(x, mx.array)), mx.float32)
    arrays = [x if isinstance(x, mx.array) else mx.array(x, dtype) for x in operands]
    shape = mx.broadcast_shapes(*[x.shape for x in arrays])
    return [x if x.shape == shape else mx.broadcast_to(x, shape) for x in arrays]


def spread(x: mx.array, shape: Sequence[int]) -> mx.array:
    """Broadcast X to SHAPE axis by axis, so that its gradient is summed so, the last axis first.

    All axes at once, MLX adds one number after another on the CPU, which rounds each time.
    """
    sizes = [*[1] * (len(shape) - x.ndim), *x.shape]
    for axis, (own, wanted) in enumerate(zip(sizes, shape, strict=True)):
        if own != wanted:
            sizes[axis] = wanted
            x = mx.broadcast_to(x, sizes)
    return x


def zero_where(condition: mx.array, x: mx.array) -> mx.array:
    """Return X, and 0 where CONDITION holds, whatever X is there."""
    if condition.shape != x.shape or x.dtype != mx.float32 or not on_cpu():
        return mx.where(condition, mx.array(0, x.dtype), x)  # zeros_like is a kernel of its own
    result: mx.array = _blanked(condition, x)
    return result


def on_cpu() -> bool:
    """Tell whether MLX computes on the CPU."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


# By the bits of X, all of them or none: on the CPU mx.where takes five times as long.
_blanked = with_gradient(
    lambda condition, x: (x.view(mx.int32) & (condition.astype(mx.int32) - 1)).view(mx.float32),
    lambda g, _, condition, __: (None, zero_where(condition, g)),
)


_select = with_gradient(
    mx.where,
    lambda g, _, condition, *__: (None, zero_where(~condition, g), zero_where(condition, g)),
)


def where(condition: mx.array, a: mx.array | float, b: mx.array | float) -> mx.array:
    """Do as ``mx.where``; what was not chosen gets gradient 0, where MLX has infinity times 0."""
    first, second = alike([a, b])
    shape = mx.broadcast_shapes(condition.shape, first.shape)
    arrays = (mx.broadcast_to(x, shape) for x in (condition.astype(mx.bool_), first, second))
    result: mx.array = _select(*arrays)
    return result
