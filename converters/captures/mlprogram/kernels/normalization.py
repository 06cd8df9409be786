"""Kernels that normalize: over a batch's statistics, an instance, a layer, a neighbourhood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .elementwise import per_channel
from .kernel import Function, Ints


def standardize(x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    """Return ``(x - mean) / sqrt(variance + epsilon)`` over AXES, with the biased variance."""
    centred = x - x.mean(list(axes), keepdim=True)
    return centred / torch.sqrt(centred.square().mean(list(axes), keepdim=True) + epsilon)


def affine(x: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    """Return ``gamma * x + beta``; both broadcast."""
    x = x if gamma is None else x * gamma
    return x if beta is None else x + beta


def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """Normalize with given statistics, one of each per channel."""
    y = (x - per_channel(mean, x)) / torch.sqrt(per_channel(variance, x) + epsilon)
    scale, shift = (p if p is None else per_channel(p, x) for p in (gamma, beta))
    return affine(y, scale, shift)


def instance_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Normalize every channel of every example over its spatial axes."""
    scale, shift = (p if p is None else per_channel(p, x) for p in (gamma, beta))
    return affine(standardize(x, range(2, x.dim()), epsilon), scale, shift)


def layer_norm(
    x: Tensor,
    axes: Ints | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """Normalize over AXES, all of them where none are given."""
    over = {axis % x.dim() for axis in axes or range(x.dim())}
    shape = [size if axis in over else 1 for axis, size in enumerate(x.shape)]
    scale, shift = (p if p is None else p.reshape(shape) for p in (gamma, beta))
    return affine(standardize(x, sorted(over), epsilon), scale, shift)


KERNELS: Final[Mapping[str, Function]] = {
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "l2_norm": lambda x, epsilon=1e-6: (
        x / torch.sqrt(x.square().sum((-3, -2, -1), keepdim=True) + epsilon)
    ),
    "layer_norm": layer_norm,
    "local_response_norm": lambda x, size, alpha=1e-4, beta=0.75, k=1.0: F.local_response_norm(
        x, size, alpha, beta, k
    ),
}
