"""Reductions, cumulative sums, softmax, sorting against torch."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest
import torch

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch

DISTINCT = torch.randperm(24, generator=torch.Generator().manual_seed(3)).reshape(2, 3, 4)
REDUCTIONS = {
    "sum": torch.sum,
    "sum over an axis": lambda x: x.sum(-1),
    "sum over axes": lambda x: x.sum((0, 2), keepdim=True),
    "mean": torch.mean,
    "mean over axes": lambda x: x.mean((-1, 0)),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((0, 1)),
    "amin": lambda x: x.amin(-1, keepdim=True),
    "max": torch.max,
    "min": torch.min,
    "max with index": lambda x: x.max(1),
    "min with index": lambda x: x.min(-1, keepdim=True),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "var": torch.var,
    "var over axes": lambda x: x.var((0, 2), unbiased=False),
    "std": lambda x: x.std(1, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1), correction=0),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "diff": torch.diff,
    "second diff along another axis": lambda x: x.diff(2, 1, prepend=x[:, :1] - 1, append=x),
    "diff of truths": lambda x: (x > 0).diff(dim=0),
    "no diff": lambda x: x.diff(0, prepend=x),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm of all": torch.linalg.vector_norm,
    "1-norm": lambda x: x.norm(1, -1),
    "3-norm": lambda x: torch.linalg.vector_norm(x, 3, (0, 1)),
    "0-norm": lambda x: torch.linalg.vector_norm(x, 0, -1),
    "inf-norm": lambda x: torch.linalg.vector_norm(x, math.inf, -1),
    "normalize": lambda x: torch.nn.functional.normalize(x, dim=-1),
    "softmax": lambda x: x.softmax(-1),
    "softmax of nothing": lambda x: (x[:0].softmax(0), x[:0].log_softmax(0)),
    "softmax along another axis": lambda x: x.softmax(1),
    "softmax in another dtype": lambda x: x.softmax(-1, dtype=torch.float64),
    "log_softmax": lambda x: x.log_softmax(0),
    "sort": lambda x: x.sort(-1),
    "sort descending": lambda x: x.sort(dim=1, descending=True, stable=True),
    "argsort": lambda x: x.argsort(0),
    "topk": lambda x: x.topk(2, -1),
    "bottomk": lambda x: x.topk(2, 1, largest=False),
    "argmax": torch.argmax,
    "argmax along an axis": lambda x: x.argmax(-1, keepdim=True),
    "argmin": lambda x: x.argmin(1),
    "any": lambda x: (x > 1.5).any(-1),
    "all": lambda x: (x > -1.5).all(),
    "count": lambda x: (x > 0).sum(-1),
}
OF_NUMBER = {
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(0),
    "sum": lambda x: x.sum(0, keepdim=True),
    "max": lambda x: x.max(0),
    "sort": lambda x: x.sort(0),
    "topk": lambda x: x.topk(1),
    "norm": torch.linalg.vector_norm,
    "logsumexp": lambda x: x.logsumexp(0),
}


INTEGERS = ("sum", "prod", "max", "argmin", "any", "cumsum", "sort", "topk")
ARGUMENTS = {"cumsum": (1,), "topk": (2,)}


def test_reductions(agree):
    agree({name: (function, (2, 3, 4)) for name, function in REDUCTIONS.items()}, rtol=4e-6)


def test_reductions_of_a_tensor_without_axes(agree):
    agree({name: (function, ()) for name, function in OF_NUMBER.items()})


def test_reductions_of_integers(agree):
    agree(
        {
            name: (lambda x, n=name: getattr(torch, n)(x, *ARGUMENTS.get(n, ())), DISTINCT.int())
            for name in INTEGERS
        }
    )


def test_rows_of_minus_infinity(agree):
    rows = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])
    cases = {"softmax": lambda x: x.softmax(-1), "logsumexp": lambda x: x.logsumexp(-1)}
    agree({name: (function, rows) for name, function in cases.items()}, gradients=False)


def test_the_norm_of_zero_has_gradient_zero(agree):
    zero = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    agree({"norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), zero)})


def test_equal_elements_keep_their_order(agree):
    ties = torch.tensor([1.0, 0.0, 1.0, 0.0, 2.0, 2.0])
    agree(
        {
            "up": (lambda x: x.sort(stable=True), ties),
            "down": (lambda x: x.sort(descending=True, stable=True), ties),
        }
    )


def test_ranks_need_no_gradient_of_their_indices(agree):
    agree({"rank": (lambda x: x.gather(-1, x.argsort(-1)) * x.topk(4)[0], (3, 4))})


def test_places_in_a_sorted_sequence(agree):
    bounds = torch.tensor([-1.0, 0.0, 0.5])
    agree(
        {
            "left": (lambda x: torch.bucketize(x, bounds), (3, 4)),
            "right": (lambda x: torch.bucketize(x, bounds, right=True), torch.tensor([0.0, 0.5])),
            "searchsorted": (lambda x: torch.searchsorted(torch.stack([bounds] * 2), x), (2, 5)),
        }
    )


@pytest.mark.parametrize(
    ("x", "axis"),
    [
        (10_000 + torch.rand(4, 5), 0),
        (10_000 + torch.rand(4, 5), 1),
        (torch.arange(3000.0).reshape(1000, 3) % 1500 - 750, 0),
        (torch.rand(2, 0), 1),
    ],
    ids=["far", "far along rows", "ramps", "nothing"],
)
def test_sums_of_exponents_far_from_zero_keep_their_gradient(x, axis):
    weight = torch.randn(x.shape)
    exact = x.double().requires_grad_()
    (exact.logcumsumexp(axis) * weight).sum().backward()
    captured = capture(Sums(axis), inputs=(x,))
    found = mx.grad(lambda x: (captured(x) * to_mlx(weight)).sum())(to_mlx(x))
    torch.testing.assert_close(to_torch(found).double(), exact.grad, rtol=1e-5, atol=1e-5)


class Sums(torch.nn.Module):
    def __init__(self, axis):
        super().__init__()
        self.axis = axis

    def forward(self, x):
        return x.logcumsumexp(self.axis)
