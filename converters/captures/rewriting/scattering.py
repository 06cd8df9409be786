"""Elements that are put, or added up, where an index says: each place asks every index whether it is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, prod
from typing import Any, Final

import torch
from torch import Tensor

MOST: Final = 1 << 26  # numbers that an operation may be computed by
# What several numbers for one place become, and what changes none of it.
JOINED: Final[Mapping[str, tuple[Callable[..., Tensor], Callable[..., Tensor], float]]] = {
    "sum": (torch.sum, torch.add, 0.0),
    "mean": (torch.sum, torch.add, 0.0),
    "prod": (torch.prod, torch.mul, 1.0),
    "amax": (torch.amax, torch.maximum, -inf),
    "amin": (torch.amin, torch.minimum, inf),
}


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Return X with what elements of SOURCE become together where INDEX says, with those of X if INCLUDE_SELF."""
    found = meant_for(x, dim, index)
    if found is None or (not x.is_floating_point() and reduce not in ("sum", "prod")):
        return NotImplemented
    meant, dim = found
    join, both, neutral = JOINED[reduce]
    given = cut(source, index, x, dim).unsqueeze(dim)
    joined = join(torch.where(meant, given, torch.full_like(given, neutral)), dim + 1)
    there = meant.any(dim + 1)
    joined = both(x, joined) if include_self else joined
    if reduce == "mean":
        count = meant.to(x.dtype).sum(dim + 1)
        joined = joined / (count + 1 if include_self else torch.clamp_min(count, 1.0))
    return torch.where(there, joined, x)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """Return X with elements of SOURCE added where INDEX says."""
    return scatter_reduce(x, dim, index, source, "sum")


def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """Return X with the elements of SOURCE where INDEX says, of several the last."""
    found = meant_for(x, dim, index)
    if found is None:
        return NotImplemented
    meant, dim = found
    turns = torch.arange(1, meant.shape[dim + 1] + 1, device=x.device)
    turns = turns.reshape(-1, *[1] * (meant.ndim - dim - 2))
    turns = torch.where(
        meant, turns.expand(meant.shape), torch.zeros_like(meant, dtype=torch.int64)
    )
    own = torch.logical_and(meant, torch.eq(turns, turns.amax(dim + 1, keepdim=True)))
    given = cut(source, index, x, dim).unsqueeze(dim)
    put = torch.where(own, given, torch.zeros_like(given)).sum(dim + 1).to(x.dtype)
    return torch.where(meant.any(dim + 1), put, x)


def scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Any:
    """Return X with VALUE where INDEX says."""
    found = meant_for(x, dim, index)
    if found is None:
        return NotImplemented
    return torch.where(found[0].any(found[1] + 1), torch.full_like(x, value), x)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    """Return X with slices of SOURCE added, ALPHA times, where INDEX says."""
    return scatter_add(
        x, dim, of_slices(index, dim, source), source if alpha == 1 else source * alpha
    )


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """Return X with slices of SOURCE where INDEX says."""
    return scatter(x, dim, of_slices(index, dim, source), source)


def of_slices(index: Tensor, dim: int, source: Tensor) -> Tensor:
    """Return INDEX of slices of SOURCE along DIM for each of their elements."""
    return index.reshape(-1, *[1] * (source.ndim - dim % source.ndim - 1)).expand(source.shape)


def cut(source: Tensor, index: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return those elements of SOURCE that INDEX has a place for, zeros where X has more along other axes than DIM."""
    for axis, size in enumerate(index.shape):
        source = source if source.shape[axis] == size else source.narrow(axis, 0, size)
    return filled(source, x, dim, 0)


def filled(part: Tensor, x: Tensor, dim: int, value: int) -> Tensor:
    """Return PART with VALUE behind it, up to the size of X along axes other than DIM."""
    ends = [0 if axis == dim else x.shape[axis] - part.shape[axis] for axis in range(x.ndim)]
    short = [size for end in reversed(ends) for size in (0, end)]
    return torch.constant_pad_nd(part, short, value) if any(short) else part


def meant_for(x: Tensor, dim: int, index: Tensor) -> tuple[Tensor, int] | None:
    """Return which element along DIM of INDEX, the axis after it, means which place of X, and DIM from the front.

    ``None`` where the places vary, or where there are too many.
    """
    sizes: list[Any] = [*index.shape]
    known = prod(it for it in sizes if isinstance(it, int))
    dim = dim % x.ndim if x.ndim else 0
    if not x.ndim or not isinstance(x.shape[dim], int) or x.shape[dim] * known > MOST:
        return None
    index = filled(index, x, dim, -1)
    places = torch.arange(x.shape[dim], device=x.device).reshape(-1, *[1] * (x.ndim - dim))
    return torch.eq(index.unsqueeze(dim), places), dim
