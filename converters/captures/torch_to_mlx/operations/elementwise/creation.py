"""New arrays; shapes may be symbolic sizes of the inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..registry import operation, register


def _range(start: float, end: float, step: float, dtype: mx.Dtype) -> mx.array:
    """Count first, then multiply: adding a float step would drift and may miss the last one."""
    if all(isinstance(bound, int) for bound in (start, end, step)):
        return mx.arange(start, end, step, dtype=dtype)
    count = max(0, math.ceil((end - start) / step))
    return (start + mx.arange(count) * step).astype(dtype)


def _full(size: Sequence[int], value: Any, dtype: mx.Dtype) -> mx.array:
    return mx.full(list(size), value, dtype)


register(
    {
        "arange": lambda end, dtype: _range(0, end, 1, dtype),
        "arange.start": lambda start, end, dtype: _range(start, end, 1, dtype),
        "arange.start_step": lambda start, end, dtype, step=1: _range(start, end, step, dtype),
        "zeros_like empty_like": lambda self, dtype: _full(self.shape, 0, dtype),
        "ones_like": lambda self, dtype: _full(self.shape, 1, dtype),
        "full_like": lambda self, fill_value, dtype: _full(self.shape, fill_value, dtype),
        "zeros empty.memory_format new_zeros new_empty": lambda size, dtype, **_: _full(
            size, 0, dtype
        ),
        "ones new_ones": lambda size, dtype, **_: _full(size, 1, dtype),
        "full new_full": lambda size, fill_value, dtype, **_: _full(size, fill_value, dtype),
        "scalar_tensor": lambda s, dtype: _full((), s, dtype),
        "fill.Scalar fill.Tensor": lambda self, value, dtype: _full(self.shape, value, dtype),
        "copy": lambda self, src: mx.broadcast_to(src, self.shape),
        "eye": lambda n, dtype: mx.eye(n, dtype=dtype),
        "eye.m": lambda n, m, dtype: mx.eye(n, m, dtype=dtype),
        "linspace": lambda start, end, steps, dtype: mx.linspace(start, end, steps, dtype=dtype),
        "complex": lambda real, imag: real + 1j * imag,
        "view_as_real": lambda self: mx.stack([mx.real(self), mx.imag(self)], axis=-1),
        "view_as_complex": lambda self: self[..., 0] + 1j * self[..., 1],
    }
)


def _polar(length: mx.array, angle: mx.array) -> mx.array:
    """Return complex numbers; a LENGTH has torch's gradient, which takes it to be positive."""
    positive = mx.abs(length)
    length = positive + mx.stop_gradient(length - positive)
    return length * mx.cos(angle) + 1j * (length * mx.sin(angle))


register({"polar": _polar}, arity=2)


@operation("one_hot")
def _one_hot(self: mx.array, num_classes: int, dtype: mx.Dtype) -> mx.array:
    return (self[..., None] == mx.arange(num_classes)).astype(dtype)
