"""Gradients where a function has no derivative, or two inputs share one: as torch's autograd has them."""

from __future__ import annotations

import io
import math

import mlx.core as mx
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.converters.captures.torch_to_mlx.operations.elementwise.kinks import relu

INF, NAN = math.inf, math.nan


def numbers(*values):
    return torch.tensor(values, dtype=torch.float32)


BOUNDS = numbers(-4, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 6, 7)
HUGE = numbers(-1e4, -100, -20, -1, 0, 1, 20, 100, 1e4)
TIES = torch.tensor([[1.0, 3, 3, 0], [2, 2, 2, 2], [0, -1, 0, -1]])
ZEROS = torch.tensor([[0.0, 2, 3], [0, 0, 4], [1, 2, 3]])
LABELS = numbers(0, 1, 0, 1, 1, 0, 1, 0, 1)
SIGNS = numbers(-1, 1, -1, 1, 1, -1, 1, -1, 1)
LOST = torch.tensor([[-INF, -INF], [-INF, 1.0], [2.0, 1.0]])
PAIR = (numbers(1, 2, 0, -0.0, 3), numbers(1, 0, 0, 0.0, 4))

ACTIVATIONS = {
    name: (function, BOUNDS)
    for name, function in {
        "relu": F.relu,
        "relu6": F.relu6,
        "hardtanh": F.hardtanh,
        "hardtanh between -2 and 3": lambda x: F.hardtanh(x, -2, 3),
        "hardswish": F.hardswish,
        "hardsigmoid": F.hardsigmoid,
        "hardshrink": F.hardshrink,
        "softshrink": F.softshrink,
        "leaky_relu": F.leaky_relu,
        "leaky_relu with a negative slope": lambda x: F.leaky_relu(x, -0.5),
        "elu": F.elu,
        "selu": F.selu,
        "celu": F.celu,
        "threshold": lambda x: F.threshold(x, 1.0, 20.0),
        "prelu": lambda x: F.prelu(x.reshape(1, -1), torch.tensor([0.2])),
        "softsign": F.softsign,
        "tanhshrink": F.tanhshrink,
        "softplus at its threshold": lambda x: F.softplus(x * 10),
        "logit beyond its bounds": lambda x: torch.logit(x, 0.1),
    }.items()
}
SATURATED = {
    name: (function, HUGE)
    for name, function in {
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": F.softplus,
        "logsigmoid": F.logsigmoid,
        "silu": F.silu,
        "mish": F.mish,
        "gelu": F.gelu,
        "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
        "softmax": lambda x: x.softmax(0),
        "log_softmax": lambda x: x.log_softmax(0),
        "logsumexp": lambda x: x.logsumexp(0),
        "binary_cross_entropy": lambda x: F.binary_cross_entropy(torch.sigmoid(x), LABELS),
        "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, LABELS),
        "soft_margin_loss": lambda x: F.soft_margin_loss(x / 100, SIGNS),
        "cross_entropy": lambda x: F.cross_entropy(x[None], torch.tensor([0])),
        "logaddexp": lambda x: torch.logaddexp(x, -x),
        "erf": torch.erf,
        "erfc": torch.erfc,
        "atan": torch.atan,
    }.items()
}
STEPS = {
    name: (function, BOUNDS)
    for name, function in {
        "abs": torch.abs,
        "sign": torch.sign,
        "floor": torch.floor,
        "ceil": torch.ceil,
        "round": torch.round,
        "trunc": torch.trunc,
        "frac": torch.frac,
        "remainder": lambda x: torch.remainder(x, 2.0),
        "fmod": lambda x: torch.fmod(x, 2.0),
        "floor division": lambda x: torch.div(x, 2.0, rounding_mode="floor") + x,
        "truncating division": lambda x: torch.div(x, 2.0, rounding_mode="trunc") + x,
        "clamp": lambda x: x.clamp(-1, 1),
        "clamp below": lambda x: x.clamp(min=1),
        "clamp above": lambda x: x.clamp(max=1),
        "clamp with crossed bounds": lambda x: x.clamp(1, -1),
        "clamp_min": lambda x: x.clamp_min(1),
        "clamp_max": lambda x: x.clamp_max(1),
        "maximum with a constant": lambda x: torch.maximum(x, torch.ones(())),
        "sinc": torch.sinc,
        "sqrt": lambda x: torch.sqrt(x.relu()),
        "rsqrt": torch.rsqrt,
        "log": torch.log,
        "log1p": torch.log1p,
        "reciprocal": lambda x: 1 / x,
        "square": lambda x: x**2,
        "to the power of 0": lambda x: x**0,
        "to the power of 0.5": lambda x: x**0.5,
        "to the power of 1.5": lambda x: x**1.5,
        "to the power of -1": lambda x: x**-1,
        "to the power of 3": lambda x: x**3,
        "to the power of a tensor": lambda x: x ** torch.full((), 2.0),
        "zero to a power": lambda x: 0.0**x,
        "a power of zero": lambda x: torch.pow(torch.zeros(()), x),
        "asin": torch.asin,
        "acos": torch.acos,
        "atanh": torch.atanh,
        "acosh": torch.acosh,
        "nan_to_num": lambda x: torch.nan_to_num(1 / x),
        "where with nan in the branch not taken": lambda x: torch.where(x > 0, x.log(), 0.0),
        "masked_fill of nan": lambda x: x.log().masked_fill(x <= 0, 0.0),
        "copysign": lambda x: torch.copysign(x, torch.tensor(-0.0)),
    }.items()
}
TWO = {
    name: (function, *PAIR)
    for name, function in {
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "fmax": torch.fmax,
        "fmin": torch.fmin,
        "clamp by tensors": lambda a, b: a.clamp(b, b + 1),
        "clamp_min by a tensor": lambda a, b: a.clamp_min(b),
        "clamp_max by a tensor": lambda a, b: a.clamp_max(b),
        "atan2": torch.atan2,
        "hypot": torch.hypot,
        "xlogy": torch.xlogy,
        "xlog1py": torch.special.xlog1py,
        "pow": lambda a, b: torch.pow(a.abs(), b),
        "dist": torch.dist,
        "l1_loss": F.l1_loss,
        "mse_loss": F.mse_loss,
        "smooth_l1_loss": F.smooth_l1_loss,
        "smooth_l1_loss with beta 0": lambda a, b: F.smooth_l1_loss(a, b, beta=0.0),
        "huber_loss": F.huber_loss,
        "huber_loss at delta": lambda a, b: F.huber_loss(a, b, delta=2.0),
        "kl_div": lambda a, b: F.kl_div(a, b, reduction="sum"),
        "margin_ranking_loss": lambda a, b: F.margin_ranking_loss(a, b, torch.ones(5), margin=1.0),
        "hinge_embedding_loss": lambda a, b: F.hinge_embedding_loss(
            a - b, numbers(1, -1, -1, 1, -1), margin=2.0
        ),
        "cosine_similarity": lambda a, b: F.cosine_similarity(a, b - b, dim=0),
        "pairwise_distance": F.pairwise_distance,
        "triplet_margin_loss": lambda a, b: F.triplet_margin_loss(a[None], b[None], b[None]),
        "copysign": torch.copysign,
        "logaddexp": torch.logaddexp,
    }.items()
}
REDUCED = {
    name: (function, TIES)
    for name, function in {
        "amax": lambda x: x.amax(1),
        "amin": lambda x: x.amin(1),
        "amax of all": lambda x: x.amax(),
        "max": torch.max,
        "min": torch.min,
        "max with index": lambda x: x.max(1),
        "min with index": lambda x: x.min(1),
        "aminmax": lambda x: torch.aminmax(x, dim=1),
        "aminmax of all": torch.aminmax,
        "cummax": lambda x: x.cummax(1),
        "cummin": lambda x: x.cummin(1),
        "median": lambda x: x.median(),
        "nanmedian": lambda x: x.nanmedian(),
        "sort": lambda x: x.sort(dim=1, stable=True)[0],
        "std": lambda x: x.std(1),
        "var": lambda x: x.var(1),
        "std_mean": lambda x: torch.std_mean(x, 1),
        "max-norm": lambda x: torch.linalg.vector_norm(x, INF, 1),
        "least norm": lambda x: torch.linalg.vector_norm(x, -INF, 1),
        "max_pool1d": lambda x: F.max_pool1d(x, 2),
        "overlapping max_pool1d": lambda x: F.max_pool1d(x, 3, 1),
        "max_pool2d": lambda x: F.max_pool2d(x[None], (3, 2)),
        "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, 2),
        "std of a constant": lambda x: (x * 0).std(),
        "layer_norm of a constant": lambda x: F.layer_norm(x, (4,)),
        "normalize": lambda x: F.normalize(x * 0, dim=1),
        "rms_norm of zeros": lambda x: F.rms_norm(x * 0, (4,), eps=1e-6),
    }.items()
}
OF_ZEROS = {
    name: (function, ZEROS)
    for name, function in {
        "prod": lambda x: x.prod(1),
        "prod of all": torch.prod,
        "cumprod": lambda x: x.cumprod(1),
        "norm": lambda x: torch.linalg.vector_norm(x[1:2, :2], dim=-1),
        "1-norm": lambda x: torch.linalg.vector_norm(x, 1, -1),
        "3-norm": lambda x: torch.linalg.vector_norm(x * 0, 3, -1),
        "half norm": lambda x: torch.linalg.vector_norm(x, 0.5, -1),
        "0-norm": lambda x: torch.linalg.vector_norm(x, 0, -1),
        "norm by its old name": lambda x: torch.norm(x * 0),
        "cdist": lambda x: torch.cdist(x, x),
        "1-cdist": lambda x: torch.cdist(x, x, 1.0),
        "max-cdist": lambda x: torch.cdist(x, x, INF),
        "pdist": F.pdist,
        "xlogy": lambda x: torch.xlogy(x, x),
        "entr": torch.special.entr,
        "logsumexp of minus infinity": lambda x: torch.log(x).logsumexp(1),
        "masked softmax": lambda x: x.masked_fill(x == 0, -INF).softmax(1),
    }.items()
}
OF_LOST = {
    "logsumexp": (lambda x: x.logsumexp(1), LOST),
    "softmax": (lambda x: x.softmax(1), LOST),
    "log_softmax": (lambda x: x.log_softmax(1), LOST),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), LOST[1:]),
    "nansum": (torch.nansum, numbers(1, NAN, 2)),
    "nanmean": (torch.nanmean, numbers(1, NAN, 2)),
    "nan_to_num": (torch.nan_to_num, numbers(1, NAN, INF, -INF)),
    "clamp of nan": (lambda x: x.clamp(-1, 1), numbers(1, NAN, INF, -INF)),
    "relu of nan": (F.relu, numbers(1, NAN, INF, -INF)),
}
KINKS = {
    "activations": ACTIVATIONS,
    "saturated": SATURATED,
    "steps": STEPS,
    "two operands": TWO,
    "reductions": REDUCED,
    "zeros": OF_ZEROS,
    "infinity and nan": OF_LOST,
}


@pytest.mark.parametrize("theme", KINKS)
def test_gradients_at_kinks_and_ties_are_those_of_torch(agree, theme):
    agree(KINKS[theme], rtol=4e-6)


def test_the_gradient_of_relu_fills_no_memory_with_zeros_first():
    x, drawn = to_mlx(BOUNDS.bfloat16()), io.StringIO()
    mx.export_to_dot(drawn, mx.grad(lambda x: mx.sum(relu(x)))(x))
    assert '"Select"' in drawn.getvalue()
    assert '"Full"' not in drawn.getvalue()
