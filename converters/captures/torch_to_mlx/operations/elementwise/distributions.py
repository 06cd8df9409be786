"""Samples of distributions, drawn from ``mx.random``: same distribution as torch, other numbers.

Under ``mx.compile``, ``mx.random.state`` must be among the inputs and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx

from ..registry import operation, register


def open_uniform(shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    """Return numbers above 0 and below 1, whose logarithms are finite."""
    drawn = mx.random.uniform(shape=list(shape))
    return mx.clip(drawn, 2.0**-25, 1 - 2.0**-24).astype(dtype)


def first_taken(candidates: mx.array, taken: mx.array) -> mx.array:
    """Return the first of CANDIDATES along axis 0 that is TAKEN, the first of all where none is."""
    if candidates.size == 0:  # argmax takes no empty arrays
        return mx.zeros(candidates.shape[1:], candidates.dtype)
    first = mx.argmax(taken, axis=0, keepdims=True)
    return mx.take_along_axis(candidates, first, axis=0)[0]


def _exponential(x: mx.array, rate: float = 1.0) -> mx.array:
    return -mx.log(open_uniform(x.shape, x.dtype)) / rate


def _cauchy(x: mx.array, median: float = 0.0, sigma: float = 1.0) -> mx.array:
    return median + sigma * mx.tan(math.pi * (open_uniform(x.shape, x.dtype) - 0.5))


def _geometric(self: mx.array, p: float) -> mx.array:
    """Count trials up to the first success."""
    return mx.ceil(mx.log(open_uniform(self.shape, mx.float32)) / math.log1p(-p)).astype(self.dtype)


def _normal(shape: Sequence[int], mean: Any, std: Any, dtype: mx.Dtype) -> mx.array:
    """Draw normal numbers; none has a gradient by its MEAN or STD, as in torch."""
    return mx.stop_gradient(mx.random.normal(shape=list(shape), dtype=dtype) * std + mean)


def _integers(low: int, high: int, size: Sequence[int], dtype: mx.Dtype) -> mx.array:
    return mx.random.randint(low, high, shape=list(size)).astype(dtype)


def _any_integers(self: mx.array, to: int | None = None) -> mx.array:
    """Draw whole numbers from 0: below TO, or up to the largest that SELF's dtype has without a gap."""
    return _integers(0, _LARGEST[self.dtype] + 1 if to is None else to, self.shape, self.dtype)


# The last whole number of each dtype before which there is none that it leaves out; MLX draws 32 bits at most.
_LARGEST: Final = {
    mx.float32: 2**24,
    mx.float16: 2**11,
    mx.bfloat16: 2**8,
    mx.uint8: 2**8 - 1,
    mx.int8: 2**7 - 1,
    mx.int16: 2**15 - 1,
    mx.int32: 2**31 - 1,
    mx.bool_: 1,
}

register(
    {
        "random": _any_integers,
        "random.to": _any_integers,
        "random.from": lambda self, from_, to: _integers(from_, to, self.shape, self.dtype),
        "uniform": lambda self, from_=0.0, to=1.0: mx.random.uniform(
            from_, to, shape=self.shape, dtype=self.dtype
        ),
        "normal_functional": lambda self, mean=0.0, std=1.0: _normal(
            self.shape, mean, std, self.dtype
        ),
        "exponential": lambda self, lambd=1.0: _exponential(self, lambd),
        "cauchy": lambda self, median=0.0, sigma=1.0: _cauchy(self, median, sigma),
        "geometric": _geometric,
        "log_normal": lambda self, mean=1.0, std=2.0: mx.exp(
            _normal(self.shape, mean, std, self.dtype)
        ),
        "normal.Tensor_float": lambda mean, std=1.0, dtype=None: _normal(
            mean.shape, mean, std, dtype
        ),
        "normal.float_Tensor": lambda mean, std, dtype: _normal(std.shape, mean, std, dtype),
        "normal.Tensor_Tensor": lambda mean, std, dtype: _normal(
            mx.broadcast_shapes(mean.shape, std.shape), mean, std, dtype
        ),
        "normal.float_float": lambda mean, std, size, dtype: _normal(size, mean, std, dtype),
        "randint": lambda high, size, dtype: _integers(0, high, size, dtype),
        "randint.low": _integers,
        "randint_like": lambda self, high, dtype: _integers(0, high, self.shape, dtype),
        "randint_like.low_dtype": lambda self, low, high, dtype: _integers(
            low, high, self.shape, dtype
        ),
        "randperm": lambda n, dtype: mx.random.permutation(n).astype(dtype),
        "bernoulli.Tensor": lambda self, p: mx.random.bernoulli(p, self.shape),
    }
)


@operation("multinomial")
def _multinomial(self: mx.array, num_samples: int, replacement: bool = False) -> mx.array:
    """Draw indices by their weights; without replacement the largest of log weights and Gumbel noise."""
    logits = mx.log(self)
    if replacement:
        return mx.random.categorical(logits, num_samples=num_samples)
    noisy = logits + mx.random.gumbel(self.shape)
    return mx.argsort(-noisy, axis=-1)[..., :num_samples]
