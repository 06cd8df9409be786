"""Kernels that work element by element: arithmetic, comparison, activations, casts."""

# ruff: noqa: PLW0108  (a kernel has the names of its MIL operation's inputs)
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .kernel import Function


def unary(function: Function) -> Function:
    """Return a kernel of one input, ``x``."""

    def apply(x: Tensor) -> Tensor:
        result: Tensor = function(x)
        return result

    return apply


def binary(function: Function) -> Function:
    """Return a kernel of two inputs, ``x`` and ``y``, broadcast as in numpy."""

    def apply(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = function(x, y)
        return result

    return apply


def per_channel(parameter: Tensor, x: Tensor) -> Tensor:
    """Reshape a vector so that it broadcasts along axis 1 of X."""
    return parameter.reshape([1, -1] + [1] * (x.dim() - 2))


def softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + exp(x))`` without overflow or a linear tail."""
    return torch.logaddexp(x, torch.zeros_like(x))


def real_div(x: Tensor, y: Tensor) -> Tensor:
    """Divide; integers are truncated towards zero."""
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def power(x: Tensor, y: Tensor) -> Tensor:
    """Raise to a power; negative powers of integers truncate as in float arithmetic."""
    if x.is_floating_point():
        return torch.pow(x, y)
    return torch.pow(x.double(), y.double()).trunc()


def cast(x: Tensor, dtype: str) -> Tensor:
    """Convert to DTYPE; floats become integers by truncation. The evaluator rounds floats itself."""
    if dtype == "bool":
        return x.bool()
    if dtype.startswith("fp"):
        return x.float()
    return x.trunc().long() if x.is_floating_point() else x.long()


def prelu(x: Tensor, alpha: Tensor) -> Tensor:
    """Return ``x if x >= 0 else alpha * x``, one ALPHA per channel."""
    return torch.where(x >= 0, x, x * per_channel(alpha, x))


def softplus_parametric(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Return ``alpha * log(1 + exp(beta * x))``, one pair per channel."""
    return per_channel(alpha, x) * softplus(x * per_channel(beta, x))


def gelu(x: Tensor, mode: str = "EXACT") -> Tensor:
    """Return the Gaussian error linear unit (Hendrycks and Gimpel 2016), or an approximation."""
    if mode == "SIGMOID_APPROXIMATION":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="none" if mode == "EXACT" else "tanh")


UNARY: Final[Mapping[str, Function]] = {
    "abs": torch.abs,
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "floor": torch.floor,
    "identity": lambda x: x,
    "logical_not": torch.logical_not,
    "relu": torch.relu,
    "relu6": F.relu6,
    "round": torch.round,  # halves to even
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softplus": softplus,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "atanh": torch.atanh,
}
BINARY: Final[Mapping[str, Function]] = {
    "add": torch.add,
    "equal": torch.eq,
    "floor_div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "mod": torch.remainder,
    "mul": torch.mul,
    "not_equal": torch.ne,
    "pow": power,
    "real_div": real_div,
    "sub": torch.sub,
}
KERNELS: Final[Mapping[str, Function]] = {
    **{name: unary(function) for name, function in UNARY.items()},
    **{name: binary(function) for name, function in BINARY.items()},
    "cast": cast,
    "clamped_relu": lambda x, alpha, beta: torch.where(x >= 0, x, x * alpha).clamp(max=beta),
    "clip": lambda x, alpha=-math.inf, beta=math.inf: x.clamp(alpha, beta),
    "elu": lambda x, alpha: F.elu(x, alpha),
    "gelu": gelu,
    "inverse": lambda x, epsilon=1e-4: 1 / (x + epsilon),
    "leaky_relu": lambda x, alpha: F.leaky_relu(x, alpha),
    "linear_activation": lambda x, alpha, beta: x * alpha + beta,
    "log": lambda x, epsilon=1e-45: torch.log(x + epsilon),
    "prelu": prelu,
    "rsqrt": lambda x, epsilon=1e-12: torch.rsqrt(x + epsilon),
    "scaled_tanh": lambda x, alpha, beta: alpha * torch.tanh(x * beta),
    "select": lambda cond, a, b: torch.where(cond.bool(), a, b),
    "sigmoid_hard": lambda x, alpha, beta: (x * alpha + beta).clamp(0, 1),
    "softplus_parametric": softplus_parametric,
    "threshold": lambda x, alpha: x.clamp(min=alpha),
    "thresholded_relu": lambda x, alpha: torch.where(x >= alpha, x, torch.zeros_like(x)),
}
