"""Dropout and random arrays, drawn from ``mx.random``: same distribution as torch, other numbers.

Under ``mx.compile``, ``mx.random.state`` must be among the inputs and outputs.
"""

from __future__ import annotations

import mlx.core as mx

from ..registry import operation, register

register(
    {
        "rand_like": lambda self, dtype: mx.random.uniform(shape=self.shape, dtype=dtype),
        "randn_like": lambda self, dtype: mx.random.normal(shape=self.shape, dtype=dtype),
        "rand rand.generator": lambda size, dtype: mx.random.uniform(shape=list(size), dtype=dtype),
        "randn randn.generator": lambda size, dtype: mx.random.normal(
            shape=list(size), dtype=dtype
        ),
        "bernoulli": lambda self: mx.random.bernoulli(self, self.shape),
        "bernoulli.p": lambda self, p: mx.random.bernoulli(p, self.shape),
    }
)


def drop(x: mx.array, p: float, shape: tuple[int, ...] | None = None) -> tuple[mx.array, mx.array]:
    """Zero entries of X with probability P and scale the rest by 1 / (1 - P); return it and the mask."""
    kept = mx.random.bernoulli(1 - p, x.shape if shape is None else shape)
    return x * (kept * (0.0 if p == 1 else 1 / (1 - p))).astype(x.dtype), kept


@operation("native_dropout")
def _native_dropout(input_: mx.array, p: float, train: bool | None) -> tuple[mx.array, mx.array]:
    if train is False or p == 0:
        return input_, mx.ones(input_.shape, mx.bool_)
    return drop(input_, p)


@operation("dropout")
def _dropout(input_: mx.array, p: float, train: bool) -> mx.array:
    return drop(input_, p)[0] if train and p else input_


@operation("feature_dropout")
def _feature_dropout(input_: mx.array, p: float, train: bool) -> mx.array:
    """Drop whole channels (axis 1)."""
    shape = (*input_.shape[:2], *[1] * (input_.ndim - 2))
    return drop(input_, p, shape)[0] if train and p else input_


@operation("rrelu_with_noise_functional")
def _random_leak(
    self: mx.array,
    noise: mx.array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> tuple[mx.array, mx.array]:
    """Xu et al. 2015: slopes below 0 are drawn in training, else their mean."""
    slope = mx.array((lower + upper) / 2, self.dtype)
    if training:
        slope = mx.random.uniform(lower, upper, self.shape, self.dtype)
    factor = mx.where(self > 0, mx.array(1, self.dtype), slope)
    return self * factor, factor if training else noise
