"""Operations of PyTorch that several formats lack, computed by others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def distances(one: Tensor, other: Tensor, p: float = 2, _: Any = None) -> Tensor:
    """Return how far each row of ONE is from each of OTHER, by the norm P."""
    apart = torch.abs(one.unsqueeze(-2) - other.unsqueeze(-3))
    if p == 2:
        return torch.sqrt(torch.square(apart).sum(-1))
    if p == 1:
        return apart.sum(-1)
    if p == float("inf"):
        return apart.amax(-1)
    if p == 0:
        return torch.ne(apart, 0).to(apart.dtype).sum(-1)
    return torch.pow(torch.pow(apart, p).sum(-1), 1 / p)


def clamp(x: Tensor, least: Any = None, most: Any = None) -> Any:
    """Clamp integers by numbers in floating point, which make numbers in floating point of them."""
    if x.is_floating_point() or not (isinstance(least, float) or isinstance(most, float)):
        return NotImplemented
    return torch.clamp(x.to(torch.get_default_dtype()), least, most)


def of_all(pick: Any) -> Callable[..., Any]:
    """Return a rewrite of PICK, the smallest or largest elements, that names all axes where none is named."""
    return lambda x, dim=(), keepdim=False: (
        NotImplemented if dim or not x.ndim else pick(x, [*range(x.ndim)], keepdim)
    )


def corrected(spread: Any) -> Callable[..., Any]:
    """Return a rewrite of SPREAD, a variance or its root, that says what is taken off the count by default: 1."""
    return lambda x, dim=None, *, correction=None, keepdim=False: (
        NotImplemented if correction is not None else spread(x, dim, correction=1, keepdim=keepdim)
    )


def with_mean(spread: Any, x: Tensor, dim: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the SPREAD of X, a variance or its root, and the mean."""
    axes, options = dim or [*range(x.ndim)], {"correction": 1, "keepdim": False} | options
    options["correction"] = 1 if options["correction"] is None else options["correction"]
    return spread(x, axes, **options), x.mean(axes, keepdim=options["keepdim"])


def ends(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest elements."""
    axes = [*range(x.ndim)] if dim is None else [dim]
    return x.amin(axes, keepdim), x.amax(axes, keepdim)


def place_in_all(pick: Any) -> Callable[..., Any]:
    """Return a rewrite of PICK, the place of an element among all, that says so of a row of them."""
    return lambda x, dim=None, keepdim=False: (
        NotImplemented if dim is not None or keepdim or x.ndim < 2 else pick(x.reshape(-1), 0)
    )


def trunc(x: Tensor) -> Tensor:
    """Return X without its digits behind the point."""
    return torch.sign(x) * torch.floor(torch.abs(x))


def median(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Return the lower one of the middle elements and where it is; NaN where there is one."""
    size = x.shape[dim]
    if not isinstance(size, int):
        return NotImplemented
    middle = (size - 1) // 2
    found, places = torch.topk(x, middle + 1, dim, False)
    found, places = (it.narrow(dim, middle, 1) for it in (found, places))
    if x.is_floating_point():
        nothing = torch.where(torch.ne(x, x), x, torch.zeros_like(x))
        found = found + nothing.sum(dim, keepdim=True)
    return (found, places) if keepdim else (found.squeeze(dim), places.squeeze(dim))


def median_of_all(x: Tensor) -> Any:
    """Return the lower one of the middle elements of all of X."""
    found = median(x.reshape(-1), 0)
    return NotImplemented if found is NotImplemented else found[0]


def bucketize(x: Tensor, edges: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Return how many of EDGES lie below each element, those equal to it among them if RIGHT; all for NaN."""
    apart = x.unsqueeze(-1)
    above = torch.lt(apart, edges) if right else torch.le(apart, edges)
    return torch.logical_not(above).sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def cosine_similarity(one: Tensor, other: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the product of both divided by their lengths, each at least EPS (torch's own formula)."""
    lengths = (torch.sqrt(torch.square(it).sum(dim, keepdim=True)) for it in (one, other))
    first, second = (torch.clamp_min(it, eps) for it in lengths)
    return (one / first * (other / second)).sum(dim)


def windows(x: Tensor, dim: int, size: int, step: int) -> Any:
    """Return windows of SIZE elements that begin STEP apart, their elements as the last axis."""
    length = x.shape[dim]
    if not isinstance(length, int):
        return NotImplemented
    dim %= x.ndim
    starts = torch.arange((length - size) // step + 1, device=x.device) * step
    places = starts[:, None] + torch.arange(size, device=x.device)
    found = x.index_select(dim, places.flatten())
    found = found.reshape(*x.shape[:dim], *places.shape, *x.shape[dim + 1 :])
    axes = [axis for axis in range(found.ndim) if axis != dim + 1]
    return found.permute(*axes, dim + 1)


def upper(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return X with zeros below a diagonal, whatever X has there."""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
    return torch.where(columns - rows.unsqueeze(-1) >= diagonal, x, torch.zeros_like(x))


def lower(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return X with zeros above a diagonal, whatever X has there."""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
    return torch.where(columns - rows.unsqueeze(-1) <= diagonal, x, torch.zeros_like(x))
