"""Kernels that reduce, sort or accumulate along axes."""

# ruff: noqa: ARG001, PLR0913, PLR0917  (a kernel has the inputs of its MIL operation)
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from .kernel import Function, Ints

Reduce = Callable[[Tensor, list[int], bool], Tensor]


def reduction(function: Reduce) -> Function:
    """Return a kernel that reduces over ``axes``, all of them where none are given."""

    def apply(x: Tensor, axes: Ints | None = None, keep_dims: bool = False) -> Tensor:
        return function(x, list(axes or range(x.dim())), keep_dims)

    return apply


def mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Average; the mean of integers is truncated."""
    if x.is_floating_point():
        return x.mean(axes, keepdim=keep)
    return x.double().mean(axes, keepdim=keep).trunc()


def product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Multiply along several axes, which torch does one at a time."""
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def position(function: Callable[[Tensor, int, bool], Tensor]) -> Function:
    """Return a kernel that finds the first place of an extreme."""

    def apply(
        x: Tensor, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32"
    ) -> Tensor:
        return function(x, axis, keep_dims)

    return apply


def cumsum(x: Tensor, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Sum up along AXIS, from the end if REVERSE, without the element itself if EXCLUSIVE."""
    y = x.flip(axis) if reverse else x
    total = torch.cumsum(y, axis) - (y if exclusive else 0)
    return total.flip(axis) if reverse else total


def topk(
    x: Tensor,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> tuple[Tensor, ...]:
    """Return the K largest (smallest if ASCENDING) elements along AXIS, and their positions."""
    values, indices = torch.sort(x, dim=axis, descending=not ascending, stable=True)
    top = values.narrow(axis, 0, k), indices.narrow(axis, 0, k)
    return top if return_indices else top[:1]


REDUCTIONS: Final[Mapping[str, Reduce]] = {
    "reduce_l1_norm": lambda x, axes, keep: x.abs().sum(axes, keep),
    "reduce_l2_norm": lambda x, axes, keep: x.square().sum(axes, keep).sqrt(),
    "reduce_log_sum": lambda x, axes, keep: x.sum(axes, keep).log(),
    "reduce_log_sum_exp": torch.logsumexp,
    "reduce_max": torch.amax,
    "reduce_mean": mean,
    "reduce_min": torch.amin,
    "reduce_prod": product,
    "reduce_sum": torch.sum,
    "reduce_sum_square": lambda x, axes, keep: x.square().sum(axes, keep),
}
KERNELS: Final[Mapping[str, Function]] = {
    **{name: reduction(function) for name, function in REDUCTIONS.items()},
    "argsort": lambda x, axis=-1, ascending=False: torch.argsort(
        x, dim=axis, descending=not ascending, stable=True
    ),
    "cumsum": cumsum,
    "reduce_argmax": position(torch.argmax),
    "reduce_argmin": position(torch.argmin),
    "topk": topk,
}
