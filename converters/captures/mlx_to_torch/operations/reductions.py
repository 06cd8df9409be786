"""Primitives that reduce, accumulate or order along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from .registry import Call, primitive, training


def _one_by_one(function: Callable[..., Tensor]) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """Return FUNCTION, of one axis, for several."""

    def reduced(x: Tensor, axes: Sequence[int]) -> Tensor:
        for axis in axes:
            x = function(x, axis, keepdim=True)
        return x

    return reduced


REDUCTIONS: Final[tuple[Callable[[Tensor, Sequence[int]], Tensor], ...]] = (
    _one_by_one(torch.all),
    _one_by_one(torch.any),
    lambda x, axes: torch.sum(x, list(axes), keepdim=True),
    _one_by_one(torch.prod),
    lambda x, axes: torch.amin(x, list(axes), keepdim=True),
    lambda x, axes: torch.amax(x, list(axes), keepdim=True),
)


@primitive("Reduce")
def _reduce(call: Call) -> Tensor:
    kind, axes = call.arguments
    return REDUCTIONS[kind](call.inputs[0], axes) if axes else call.inputs[0]


@primitive("ArgReduce")
def _arg_reduce(call: Call) -> Tensor:
    kind, axis = call.arguments
    return (torch.argmin, torch.argmax)[kind](call.inputs[0], axis, keepdim=True)


@primitive("Softmax")
def _softmax(call: Call) -> Tensor:
    return torch.softmax(call.inputs[0], -1)


@primitive("LogSumExp")
def _log_sum_exp(call: Call) -> Tensor:
    return torch.logsumexp(call.inputs[0], -1, keepdim=True)


SCANS: Final[tuple[Callable[[Tensor, int], Tensor], ...]] = (
    lambda x, axis: torch.cummax(x, axis).values,
    lambda x, axis: torch.cummin(x, axis).values,
    torch.cumsum,
    torch.cumprod,
    torch.logcumsumexp,
)


@primitive("Scan")
def _scan(call: Call) -> Tensor:
    kind, axis, backwards, inclusive = call.arguments
    x = call.inputs[0].flip(axis) if backwards else call.inputs[0]
    made = SCANS[kind](x, axis)
    if not inclusive:
        first = torch.full_like(made.narrow(axis, 0, 1), neutral(kind, made))
        made = torch.cat([first, made.narrow(axis, 0, made.shape[axis] - 1)], axis)
    turned: Tensor = made.flip(axis) if backwards else made
    return turned


def neutral(kind: int, x: Tensor) -> Any:
    """Return what an exclusive scan of KIND begins with, as MLX does."""
    infinite = float("inf") if x.is_floating_point() else None
    limits = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    lowest = -infinite if infinite else limits.min
    return (lowest, infinite or limits.max, 0, 1, lowest)[kind]


@primitive("Sort Partition")
def _sort(call: Call) -> Tensor:
    return _sorted(call)[0]


@primitive("ArgSort ArgPartition")
def _arg_sort(call: Call) -> Tensor:
    return _sorted(call)[1]


def _sorted(call: Call) -> Sequence[Tensor]:
    """Sort along the last of the arguments; ONNX has no form of a sort that says it is stable."""
    x, axis = call.inputs[0], call.arguments[-1]
    return torch.sort(x, dim=axis, stable=True) if training() else torch.sort(x, dim=axis)
