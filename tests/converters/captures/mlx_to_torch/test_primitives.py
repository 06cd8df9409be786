"""Every primitive that has a handler: a small function of MLX, its translation, the same values and gradients.

The callback of ``mx.export_function`` is experimental: names and places of arguments may change between
versions of MLX. These rows are what tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn

from weighbridge.converters.captures.mlx_to_torch import capture_mlx
from weighbridge.converters.captures.mlx_to_torch.operations.registry import handlers

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((2, 4, 6)).astype(np.float32)
Y = DRAW.standard_normal((2, 4, 6)).astype(np.float32)
UNIT = DRAW.uniform(0.1, 0.9, (3, 5)).astype(np.float32)
ABOVE = UNIT + 1
SQUARE = DRAW.standard_normal((4, 4)).astype(np.float32)
POSITIVE = SQUARE @ SQUARE.T + 4 * np.eye(4, dtype=np.float32)
TIES = np.array([[1, 2, 2], [0, 0, 3], [2, 2, 2]], np.float32)
WIDE = DRAW.standard_normal((6, 64)).astype(np.float32)
WHOLE = np.array([-7, -3, 0, 4, 9], np.int32)
BY = np.array([2, -2, 5, 3, -4], np.int32)
PLACES = mx.array([[0, 1], [1, 0]])
BITS = mx.array([1, 2, 4_000_000_000], mx.uint32)
IMAGE = DRAW.standard_normal((2, 7, 8, 4)).astype(np.float32)
HEADS = DRAW.standard_normal((2, 4, 5, 8)).astype(np.float32)
KEYS = DRAW.standard_normal((2, 2, 5, 8)).astype(np.float32)
MASK = mx.array(np.tril(np.ones((5, 5), bool)) & (np.arange(5) > 0))  # the first row sees nothing


class Function(nn.Module):
    """A function of up to three arrays as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def __call__(self, x: Any = None, y: Any = None, z: Any = None) -> Any:
        return self.function(*[it for it in (x, y, z) if it is not None])


def quantized(function: Callable[..., mx.array], **form: Any) -> Callable[..., mx.array]:
    """Return FUNCTION of an array and of the parts of a quantized weight; these are fixed."""
    parts = evaluated(mx.quantize(mx.array(WIDE), **form))
    return lambda x: function(x, *parts, **form)


def evaluated(arrays: Any) -> Any:
    mx.eval(arrays)
    return arrays


def layer(made: nn.Module) -> nn.Module:
    mx.eval(made.parameters())
    return made.eval()


EXPERTS = evaluated(mx.quantize(mx.array(WIDE.reshape(2, 3, 64))))

UNARY = {
    **dict.fromkeys(("abs", "ceil", "floor", "round", "sign", "square", "negative"), X),
    **dict.fromkeys(
        (
            "arcsin",
            "arccos",
            "arctan",
            "arctanh",
            "erf",
            "erfinv",
            "exp",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
        ),
        UNIT,
    ),
    **dict.fromkeys(
        ("sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsinh", "sigmoid", "sqrt", "rsqrt"), UNIT
    ),
    "arccosh": ABOVE,
}
ROWS: dict[str, tuple[Any, ...]] = {
    **{name: (getattr(mx, name), x) for name, x in UNARY.items()},
    "round of integers": (mx.round, WHOLE),
    "stop_gradient": (lambda x: mx.stop_gradient(x) * x, X),
    "add, subtract, multiply": (lambda x, y: (x + y) * (x - 2) * y[0], X, Y),
    "divide, power": (lambda x, y: (x / y) ** 3 + y**x, UNIT, ABOVE),
    "arctan2, logaddexp": (lambda x, y: mx.arctan2(x, y) + mx.logaddexp(x, y), X, Y),
    "maximum at ties": (lambda x: mx.maximum(x, 2.0) + mx.maximum(2.0, x), TIES),
    "minimum at ties": (lambda x: mx.minimum(x, 2.0) + mx.minimum(2.0, x), TIES),
    "comparisons": (lambda x, y: [x > y, x >= y, x < y, x <= y, x == y, x != y], X, Y),
    "logic": (lambda x, y: mx.logical_and(x > 0, y > 0) | ~mx.logical_or(x > 1, y > 1), X, Y),
    "equal with nan": (lambda x: mx.array_equal(x / x, x / x, equal_nan=True), X * 0),
    "where": (lambda x, y: mx.where(x > 0, x, y[..., :1]), X, Y),
    "integer division": (lambda x, y: [x // y, x % y, *mx.divmod(x, y)], WHOLE, BY),
    "floor division": (lambda x, y: [x // y, x % y, *mx.divmod(x, y)], X, Y),
    "bits": (lambda: [BITS & 3, BITS | 8, BITS ^ 5, BITS << 2, BITS >> 1, BITS + BITS, 0 - BITS],),
    "astype": (lambda x: [x.astype(mx.int32), (x > 0).astype(mx.float16), x.astype(mx.uint8)], UNIT * 9),
    "view": (lambda x: x.view(mx.int32), X),
    "complex": (lambda x, y: _complex(x + y * mx.array(1j)), X, Y),
    "mean, variance": (lambda x: mx.mean(x) + mx.var(x, 1), X),
    "reductions": (lambda x: [mx.prod(x, (0, 2)), mx.min(x, 1), mx.max(x, (0, 1)), mx.sum(x, -1)], X),
    "max at ties": (lambda x: mx.max(x, 1) + mx.min(x, 0), TIES),
    "all, any": (lambda x: [mx.all(x > -1, (0, 2)), mx.any(x > 1), mx.sum(x > 0, 1)], X),
    "argmax, argmin": (lambda x: [mx.argmax(x, 1), mx.argmin(x), mx.argmax(x, -1, True)], X),
    "softmax, logsumexp": (lambda x: [mx.softmax(x, -1), mx.softmax(x, 1), mx.logsumexp(x, -1)], X),
    "cumsum": (lambda x: mx.cumsum(x, 1) + mx.cumsum(x, 2, reverse=True, inclusive=False), X),
    "cumprod": (lambda x: mx.cumprod(x, 1) + mx.cumprod(x, 2, reverse=True), ABOVE[None]),
    "cummax": (lambda x: [mx.cummax(x, 1), mx.cummin(x, 1, reverse=True), mx.cummax(x, 1, inclusive=False)], (X * 9).astype(np.int32)),
    "sort": (lambda x: [mx.sort(x, 1), mx.sort(x)], X),
    "argsort": (lambda x: mx.argsort(x, 1), X),
    "partition": (lambda x: mx.sum(mx.topk(x, 2), -1) + mx.sum(mx.partition(x, 3, 1)[:, :4], 1).sum(), X),
    "argpartition": (lambda x: mx.take_along_axis(x, mx.stop_gradient(mx.argpartition(x, 3, 1)), 1).sum(1), X),
    "search": (lambda x: mx.searchsorted(mx.arange(5.0), x), X),
    "reshape": (lambda x: x.reshape(4, -1).T.flatten().reshape(2, 4, 6).swapaxes(0, 2), X),
    "expand, squeeze": (lambda x: mx.expand_dims(x, (0, 2)).squeeze(2)[0, :, :1].squeeze(1), X),
    "unflatten": (lambda x: mx.unflatten(x, 1, (2, 2)), X),
    "concatenate, split": (lambda x: mx.concatenate(mx.split(x, [1, 3], 1)[::-1], 1), X),
    "broadcast": (lambda x: mx.broadcast_to(x[:, None], (2, 3, 4, 6)).sum(1) + mx.repeat(x, 2, 1)[:, :4], X),
    "slice": (lambda x: x[:, ::2, ::-1] + x[:, 1::2, 1:7:1].sum() + x[0, -1], X),
    "slice update": (lambda x, y: x.at[:, 1:3].add(y[:, :2]).at[:, ::2].multiply(2.0), X, Y),
    "slice assignment": (lambda x, y: mx.slice_update(mx.pad(x, 1, mode="edge"), y, mx.array([1]), [2])[..., 1:], X, X),
    "slice maximum": (lambda x, y: x.at[:, 1:3].maximum(y[:, :2]).at[:1].minimum(y[:1]), X, Y),
    "slice at a place": (lambda x: mx.slice(x, mx.array([1]), [1], (2, 2, 6)), X),
    "pad": (lambda x: mx.pad(x, ((0, 0), (1, 2), (3, 0)), constant_values=2.0), X),
    "full, eye, tri": (lambda x: mx.full(x.shape, 2.0) * x + mx.tril(x) + mx.eye(4, 6), X),
    "arange": (lambda x: x * mx.arange(6) + mx.arange(0.5, 3.5, 0.5), X),
    "strided": (lambda x: mx.as_strided(x, (2, 3), (1, 2), 1), X),
    "depends": (lambda x: mx.depends(x * 2, x + 1), X),
    "take": (lambda x: [mx.take(x, PLACES, 1), mx.take(x, PLACES), x[mx.array([-1])]], X),
    "index": (lambda x: [x[PLACES, PLACES], x[:, PLACES, 1:3], x[..., mx.array([2, 0])]], X),
    "take along": (lambda x: mx.take_along_axis(x, mx.array([[[-1], [2]]]), 1), X),
    "put along": (lambda x, y: mx.put_along_axis(x, mx.array([[[1] * 6]] * 2), y[:, :1], 1), X, Y),
    "scatter": (lambda x, y: x.at[mx.array([1])].add(y[:1]), X, Y),
    "scatter twice": (lambda x, y: x.at[:, mx.array([1, 1, 2])].add(y[:, :3]), X, Y),
    "scatter others": (lambda x, y: [x.at[PLACES[0]].maximum(y), x.at[PLACES[0]].minimum(y)], X, Y),
    "scatter product": (lambda x, y: x.at[PLACES[0]].multiply(y), X, Y),
    "masked": (lambda x: mx.where(x > 1, 0.0, x) + _masked(x), X),
    "matmul": (lambda x, y: x @ y.swapaxes(1, 2) + mx.inner(x[0, 0], y[0, 0]), X, Y),
    "addmm": (lambda x, y: mx.addmm(x[0, :, :4], x[0], y[1].T, 0.5, 2.0) + mx.addmm(x[1, :, :4], x[0], y[0].T), X, Y),
    "einsum": (lambda x, y: mx.einsum("bij,bkj->bik", x, y), X, Y),
    "gather_mm": (lambda x, y: mx.gather_mm(x, y.swapaxes(1, 2), mx.array([0, 1, 0], mx.uint32), mx.array([1, 0, 0], mx.uint32)), X, Y),
    "cholesky": (lambda x: mx.linalg.cholesky(x, stream=mx.cpu), POSITIVE),
    "inverse": (lambda x: mx.linalg.inv(x, stream=mx.cpu), POSITIVE),
    "triangular inverse": (lambda x: mx.linalg.tri_inv(x, stream=mx.cpu), np.tril(POSITIVE)),
    "fft": (lambda x: mx.real(mx.fft.ifft(mx.fft.fft2(x)) * 2), X),
    "rfft": (lambda x: mx.fft.irfft(mx.fft.rfft(x) * 2) + mx.abs(mx.fft.rfft(x))[..., :1], X),
    "conv1d": (lambda x, w: mx.conv1d(x, w, 2, 1, 1), X, DRAW.standard_normal((3, 2, 6)).astype(np.float32)),
    "conv2d": (lambda x, w: mx.conv2d(x, w, (1, 2), (1, 0), (2, 1), 2), IMAGE, DRAW.standard_normal((6, 3, 2, 2)).astype(np.float32)),
    "conv general": (lambda x, w: mx.conv_general(x, w, 2, ([1], [2]), input_dilation=3, flip=True), X, DRAW.standard_normal((3, 3, 6)).astype(np.float32)),
    "conv transposed": (lambda x, w: mx.conv_transpose1d(x, w, 2, 1, 1, 1), X, DRAW.standard_normal((3, 3, 6)).astype(np.float32)),
    "conv transposed, groups": (lambda x, w: mx.conv_transpose2d(x, w, 2, 1, 1, 1, groups=2), IMAGE, DRAW.standard_normal((6, 3, 3, 2)).astype(np.float32)),
    "rms_norm": (lambda x, w: mx.fast.rms_norm(x, w, 1e-5) + mx.fast.rms_norm(x, None, 1e-3), X, X[0, 0]),
    "layer_norm": (lambda x, w: mx.fast.layer_norm(x, w, w * 2, 1e-5) + mx.fast.layer_norm(x, None, None, 1e-3), X, X[0, 0]),
    "rope": (lambda x: mx.fast.rope(x, 6, traditional=False, base=100.0, scale=0.5, offset=2), HEADS),
    "rope, traditional": (lambda x: mx.fast.rope(x, 8, traditional=True, base=100.0, scale=1.0, offset=mx.array([1, 3])), HEADS),
    "rope, frequencies": (lambda x: mx.fast.rope(x, 8, traditional=False, base=None, scale=1.0, offset=0, freqs=mx.array([1.0, 2.0, 5.0, 9.0])), HEADS),
    "attention": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3), HEADS, KEYS, KEYS * 2),
    "attention, causal": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask="causal"), HEADS, KEYS, KEYS * 2),
    "attention, causal, short": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q[:, :, 2:], k, v, scale=0.3, mask="causal"), HEADS, KEYS, KEYS * 2),
    "attention, nothing seen": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=MASK), HEADS, KEYS, KEYS * 2),
    "attention, added mask": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mx.arange(5.0)), HEADS, KEYS, KEYS * 2),
    "attention, sinks": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, sinks=mx.arange(4.0)), HEADS, KEYS, KEYS * 2),
    "max pool": (layer(nn.MaxPool2d(3, 2, 1)), IMAGE),
    "average pool": (layer(nn.AvgPool2d((2, 3), 2, 1)), IMAGE),
    "pool of a series": (lambda x: nn.MaxPool1d(2)(x) + nn.AvgPool1d(3, 1)(x), X),
    "batch norm": (layer(nn.BatchNorm(4)), IMAGE),
    "batch norm of rows": (layer(nn.BatchNorm(6, affine=False)), X[0]),
    "group norm": (layer(nn.GroupNorm(2, 4, pytorch_compatible=True)), IMAGE),
    "group norm of MLX": (layer(nn.GroupNorm(2, 4)), IMAGE),
    "upsample": (layer(nn.Upsample((2, 3))), IMAGE),
    "upsample, linear": (layer(nn.Upsample(2, mode="linear")), IMAGE),
    "lstm": (lambda x, lstm=layer(nn.LSTM(6, 5)): lstm(x)[0], X),
    "lstm, cells": (lambda x, y, lstm=layer(nn.LSTM(6, 5, bias=False)): list(lstm(x, y[:, 0, :5], y[:, 1, :5])), X, Y),
    "lstm, one series": (lambda x, lstm=layer(nn.LSTM(6, 5)): lstm(x[0])[0], X),
    "gru": (lambda x, y, gru=layer(nn.GRU(6, 5)): gru(x, y[:, 0, :5]) + gru(x), X, Y),
    "rnn": (lambda x, y, rnn=layer(nn.RNN(6, 5)): rnn(x, y[:, 0, :5]) + rnn(x), X, Y),
    **{
        f"quantized matmul, {bits} bits": (quantized(mx.quantized_matmul, group_size=32, bits=bits), WIDE)
        for bits in (2, 3, 4, 5, 6, 8)
    },
    **{
        f"quantized matmul, {mode}": (quantized(mx.quantized_matmul, mode=mode), WIDE)
        for mode in ("mxfp4", "mxfp8", "nvfp4")
    },
    "quantized, not transposed": (quantized(lambda x, *p, **f: mx.quantized_matmul(x[:, :6], *p, transpose=False, **f), group_size=32), WIDE),
    "dequantize": (quantized(lambda x, *p, **f: x * mx.dequantize(*p, **f), group_size=32, bits=4), WIDE),
    "gather_qmm": (lambda x: mx.gather_qmm(x[:1, None], *EXPERTS, rhs_indices=mx.array([[1], [0]], mx.uint32)), WIDE),
}  # fmt: skip
NO_GRADIENT = {
    "scatter product",
    "masked",
    "cholesky",
    "inverse",
    "triangular inverse",
}  # none in MLX
ROUGH = {"inverse": 1e-4}  # relative; the rest: 1e-5


def _complex(c: mx.array) -> mx.array:
    return mx.real(mx.conj(c) * c) + mx.imag(c)


def _masked(x: mx.array) -> mx.array:
    made = x + 0
    made[made > 0.5] = mx.array(3.0)
    return made


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@pytest.fixture(scope="module")
def seen() -> set[str]:
    return set()


@pytest.mark.parametrize("name", ROWS)
def test_a_primitive_gives_the_values_and_gradients_of_mlx(name: str, seen: set[str]) -> None:
    function, *inputs = ROWS[name]
    arrays = [mx.array(it) for it in inputs]
    module = Function(function)
    captured = capture_mlx(module, inputs=arrays)
    seen.update(captured.census().operations)
    tensors = [torch.tensor(it, requires_grad=it.dtype == np.float32) for it in inputs]
    wanted, found = listed(module(*arrays)), listed(captured(*tensors))
    tolerance = ROUGH.get(name, 1e-5)
    assert len(wanted) == len(found)
    for one, other in zip(wanted, found, strict=True):
        close(other, one, tolerance)
    if name in NO_GRADIENT:
        return
    with torch.no_grad():
        for one, other in zip(wanted, listed(captured(*tensors)), strict=True):
            close(other, one, tolerance)
    floats = [n for n, it in enumerate(wanted) if mx.issubdtype(it.dtype, mx.floating)]
    if (
        not floats
        or not any(it.requires_grad for it in tensors)
        or not found[floats[0]].requires_grad
    ):
        return
    check_gradients(module, arrays, (tensors, found, floats), 10 * tolerance)


def check_gradients(module: Any, arrays: Any, made: Any, tolerance: float) -> None:
    tensors, found, floats = made
    weights = [DRAW.standard_normal(found[n].shape).astype(np.float32) for n in floats]
    total = sum(
        (found[n].float() * torch.tensor(w)).sum() for n, w in zip(floats, weights, strict=True)
    )
    total.backward()

    def scalar(*given: mx.array) -> mx.array:
        outputs = listed(module(*given))
        return sum((outputs[n] * mx.array(w)).sum() for n, w in zip(floats, weights, strict=True))

    for n, tensor in enumerate(tensors):
        if tensor.requires_grad:
            wanted = mx.grad(scalar, argnums=n)(*arrays)
            close(
                torch.zeros_like(tensor) if tensor.grad is None else tensor.grad, wanted, tolerance
            )


def close(found: torch.Tensor, wanted: mx.array, tolerance: float) -> None:
    one, other = np.array(wanted.astype(mx.float32)), found.detach().float().numpy()
    assert one.shape == other.shape
    largest = np.abs(one[np.isfinite(one)]).max(initial=1e-6)
    np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance * largest)


def test_every_handler_has_a_row(seen: set[str]) -> None:
    if len(seen) < 20:
        pytest.skip("the rows ran elsewhere")
    assert set(handlers()) - seen == {"Number"}  # of graphs with sizes that vary: test_sizes.py
