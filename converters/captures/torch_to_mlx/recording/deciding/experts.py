"""Mixtures of experts whose code loops over those experts that got a token, which is a decision by values.

Such a layer gives, for each token, the sum of what its experts give times their weights. So it is the same layer where
every token goes to all experts, with the weight that the router gave it for each, or zero. Others sort the tokens by
their expert and split them by counts, as JetMoE does: that is a product in groups, whose sizes need not be known.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

_COUNTS: Final = ("total_experts", "num_experts")
_RECORDED: Final = (torch.Tensor, FakeTensor, FunctionalTensor)  # each has its own way to lists
_ARGUMENTS: Final = 3  # states, who is chosen, weights
_PRODUCT: Final = "grouped_mm_fallback"  # transformers' own operation


@contextlib.contextmanager
def every_expert(module: torch.nn.Module) -> Iterator[None]:
    """Let such layers of MODULE compute every expert on every token in the block."""
    with contextlib.ExitStack() as stack:
        for part in filter(_loops, module.modules()):
            count = next(getattr(part, name) for name in _COUNTS if hasattr(part, name))
            stack.enter_context(mock.patch.object(part, "forward", _summed(part.forward, count)))
        for part in filter(_splits, module.modules()):
            stack.enter_context(mock.patch.object(part, "forward", _grouped(part)))
        for part in filter(_counts, module.modules()):
            stack.enter_context(mock.patch.object(part, "forward", _counted(part.forward)))
        yield


def has_experts(module: torch.nn.Module) -> bool:
    """Tell whether MODULE has layers that :func:`every_expert` lets compute otherwise."""
    kinds = (_loops, _splits, _counts)
    return any(kind(part) for part in module.modules() for kind in kinds)


def _loops(part: torch.nn.Module) -> bool:
    """Tell whether PART holds experts that are chosen, and transformers has no other way to compute them."""
    forward = type(part).forward
    named = type(part).__name__.endswith("Experts") and any(hasattr(part, it) for it in _COUNTS)
    own = not hasattr(forward, "__wrapped__")
    return named and own and len(inspect.signature(part.forward).parameters) == _ARGUMENTS


def _splits(part: torch.nn.Module) -> bool:
    """Tell whether PART holds a matrix for each expert, by which it multiplies rows that it splits by counts."""
    named = type(part).__name__.endswith("ParallelExperts") and hasattr(part, "weight")
    return named and type(part).__module__.startswith("transformers.")


def _counts(part: torch.nn.Module) -> bool:
    """Tell whether PART counts the tokens of each expert, which it gives as numbers of Python."""
    named = type(part).__name__.endswith("TopKGating")
    return named and type(part).__module__.startswith("transformers.")


def _counted(own: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for kind in _RECORDED:
                stack.enter_context(mock.patch.object(kind, "tolist", lambda tensor: tensor))
            return own(*args, **kwargs)

    return forward


def _grouped(part: Any) -> Callable[..., Any]:
    own = part.forward
    import_module("transformers.integrations.moe")  # which registers the product

    def forward(rows: torch.Tensor, counts: Any) -> Any:
        if not isinstance(counts, torch.Tensor):
            return own(rows, counts)
        ends = counts.cumsum(0, dtype=torch.int32)
        return getattr(torch.ops.transformers, _PRODUCT)(rows, part.weight.transpose(1, 2), ends)

    return forward


def _summed(own: Callable[..., Any], count: int) -> Callable[..., Any]:
    def forward(states: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> Any:
        every = torch.arange(count).expand(weights.shape[0], count)  # states may have more axes
        shares = torch.zeros_like(weights[:, :1]).repeat(1, count)
        if chosen.ndim == weights.ndim:
            shares = shares.scatter_add(1, chosen, weights)
        else:  # chosen holds one number for each expert
            shares = shares + (weights[..., None] * chosen).sum(1)
            every = torch.nn.functional.one_hot(every, count)
        with _hit(count):
            return own(states, every, shares)

    return forward


@contextlib.contextmanager
def _hit(count: int) -> Iterator[None]:
    """Let a loop find in the block that each of COUNT experts got every token, however many these are."""
    where, turns = torch.where, itertools.count()

    def found(condition: torch.Tensor, *values: Any, **named: Any) -> Any:
        if values or named:
            return where(condition, *values, **named)
        return torch.tensor(next(turns) % count), torch.arange(condition.shape[-1])

    def nonzero(_tensor: torch.Tensor, *, as_tuple: bool = False) -> torch.Tensor:  # noqa: ARG001
        return torch.arange(count)[:, None]

    with (
        mock.patch.object(torch, "where", found),
        mock.patch.object(torch.Tensor, "nonzero", nonzero),
    ):
        yield
