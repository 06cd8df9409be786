"""Operations of PyTorch that several formats lack, computed by others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch._decomp.decompositions import _upsample_nearest_vec

from ...errors import UnsupportedError

ATEN: Final = torch.ops.aten


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
    return torch.where(torch.lt(x, 0), torch.ceil(x), torch.floor(x))


def smallest(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the Kth smallest element and where it is."""
    if not x.ndim:
        return NotImplemented
    found, places = torch.topk(x, k, dim, False)
    picked = (it.narrow(dim, k - 1, 1) for it in (found, places))
    return tuple(it if keepdim else it.squeeze(dim) for it in picked)


def median(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Return the lower one of the middle elements and where it is; NaN where there is one."""
    size = x.shape[dim]
    if not isinstance(size, int):
        return NotImplemented
    found, places = smallest(x, (size + 1) // 2, dim, keepdim)
    if x.is_floating_point():
        nothing = torch.where(torch.ne(x, x), x, torch.zeros_like(x))
        found = found + nothing.sum(dim, keepdim=keepdim)
        left = counted_down(x, dim, size)  # from the first NaN on
        left = torch.where(torch.ne(x, x), left, torch.zeros_like(left)).amax(dim, keepdim)
        places = torch.where(torch.eq(left, 0), places, size - left)
    return found, places


def counted_down(x: Tensor, dim: int, size: int) -> Tensor:
    """Return for each element of X how many of its SIZE there are from it on, along DIM."""
    numbers = torch.arange(size, 0, -1, device=x.device)
    return numbers.reshape(-1, *[1] * (x.ndim - dim % x.ndim - 1)).expand(x.shape)


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


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of points; coremltools and torch's ONNX have negative numbers (Y of 0) at 0, the origin at NaN."""
    upright = x == 0
    found = torch.atan(y / torch.where(upright, torch.ones_like(x), x))
    turn = torch.where(y < 0, torch.full_like(found, -math.pi), torch.full_like(found, math.pi))
    found = torch.where(x < 0, found + turn, found)
    return torch.where(upright, torch.sign(y) * (math.pi / 2), found)


def upper(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return X with zeros below a diagonal, whatever X has there."""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
    return torch.where(columns - rows.unsqueeze(-1) >= diagonal, x, torch.zeros_like(x))


def lower(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return X with zeros above a diagonal, whatever X has there."""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
    return torch.where(columns - rows.unsqueeze(-1) <= diagonal, x, torch.zeros_like(x))


def most_often(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the smallest one of the elements that are there most often, and its last place."""
    if not x.ndim:
        return NotImplemented
    alike = torch.eq(x.movedim(dim, -1).unsqueeze(-1), x.movedim(dim, -1).unsqueeze(-2))
    times = alike.sum(-1).movedim(-1, dim)
    often = torch.eq(times, times.amax(dim, keepdim=True))
    beyond = torch.full_like(x, torch.inf) if x.is_floating_point() else x.amax(dim, keepdim=True)
    found = torch.where(often, x, beyond).amin(dim, keepdim=True)
    numbers = torch.ones_like(times).cumsum(dim)
    places = torch.where(torch.eq(x, found), numbers, torch.zeros_like(numbers)).amax(dim, True) - 1
    places = torch.clamp_min(places, 0)  # of NaN alone
    return (found, places) if keepdim else (found.squeeze(dim), places.squeeze(dim))


def so_far(within: Any) -> Callable[..., Any]:
    """Return a rewrite of the largest or smallest elements so far, the last of equal ones, and where they are.

    Of two, then of four elements, and so on. An element is one WITHIN the other, ``torch.ge`` or ``torch.le``; NaN stays.
    """

    def rewrite(x: Tensor, dim: int) -> Any:
        size = x.shape[dim] if x.ndim else None
        if not isinstance(size, int):
            return NotImplemented
        found, reach = x.clone(), 1
        places = torch.arange(size, device=x.device).reshape(-1, *[1] * (x.ndim - dim % x.ndim - 1))
        places = places.expand(x.shape)
        while reach < size:
            (first, later), (begin, end) = (parts(it, dim, reach) for it in (found, places))
            (before, _), (where, _) = (parts(it, dim, size - reach) for it in (found, places))
            own = torch.logical_or(within(later, before), torch.ne(later, later))
            found = torch.cat([first, torch.where(own, later, before)], dim)
            places = torch.cat([begin, torch.where(own, end, where)], dim)
            reach *= 2
        return found, places

    return rewrite


def running(join: Any) -> Callable[..., Any]:
    """Return a rewrite of what JOINs the elements up to each: of two, then of four elements, and so on."""

    def rewrite(x: Tensor, dim: int, *, dtype: Any = None) -> Any:
        size, found = x.shape[dim] if x.ndim else 1, x if dtype is None else x.to(dtype)
        if not isinstance(size, int):
            return NotImplemented
        reach = 1
        while reach < size:
            (first, later), (before, _) = (parts(found, dim, it) for it in (reach, size - reach))
            found = torch.cat([first, join(later, before)], dim)
            reach *= 2
        return found if found is not x else x.clone()

    return rewrite


def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, _: Any = None
) -> Tensor:
    """Return X above 0, and below it X times the mean of LOWER and UPPER.

    Raises:
        UnsupportedError: slopes are drawn, as in TRAINING.
    """
    if training:
        raise UnsupportedError("rrelu draws its slopes in training: call it with training=False")
    return torch.where(torch.gt(x, 0), x, x * ((lower + upper) / 2))


def parts(x: Tensor, dim: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the first COUNT elements of X, and the others."""
    return x.narrow(dim, 0, count), x.narrow(dim, count, x.shape[dim] - count)


def copysign(x: Tensor, other: Any) -> Tensor:
    """Return X with the sign of OTHER, which a zero has too."""
    dtype = torch.result_type(x, other)
    size = torch.abs(x).to(dtype if dtype.is_floating_point else torch.get_default_dtype())
    if not isinstance(other, Tensor):
        return size * math.copysign(1.0, other)
    signed = torch.where(torch.eq(other, 0), torch.ones_like(other) / other, other)
    return torch.where(torch.lt(signed, 0), -size, size)


def fmod(x: Tensor, other: Any) -> Tensor:
    """Return what is left of X after whole ones of OTHER, with the sign of X."""
    apart = abs(other) if isinstance(other, int | float) else torch.abs(other)
    left = torch.remainder(torch.abs(x), apart)
    return torch.where(torch.eq(x, 0), x * (left + 1), torch.sign(x) * left)  # of -0 it is -0


def nansum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the sum of the elements that are numbers."""
    found = torch.where(torch.ne(x, x), torch.zeros_like(x), x)
    return found.sum([*range(x.ndim)] if dim is None else dim, keepdim, dtype=dtype)


def lerp(x: Tensor, end: Tensor, weight: Any) -> Any:
    """Return what lies between X and END, by torch's own formula, which meets both."""
    if isinstance(weight, Tensor):
        return NotImplemented
    apart = end - x
    return x + weight * apart if abs(weight) < 0.5 else end - apart * (1 - weight)


def log_sigmoid(x: Tensor) -> Tensor:
    """Return the logarithm of the logistic function, which neither end overflows."""
    return torch.clamp_max(x, 0.0) - torch.log1p(torch.exp(-torch.abs(x)))


def vector_norm(
    x: Tensor, p: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return the norm P of X, one that is a root of powers other than squares."""
    if p in (0, 1, 2) or math.isinf(p) or dtype is not None:
        return NotImplemented
    axes = [*range(x.ndim)] if dim is None else dim
    return torch.pow(torch.pow(torch.abs(x), float(p)).sum(axes, keepdim), 1 / p)


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """Return the logarithm of the sum of exponentials, that of two infinities too."""
    apart = torch.where(torch.eq(x, y), torch.zeros_like(x), torch.abs(x - y))
    return torch.maximum(x, y) + torch.log1p(torch.exp(-apart))


def threshold(x: Tensor, least: float, value: float) -> Tensor:
    """Return X where it is larger than LEAST, else VALUE."""
    return torch.where(torch.le(x, least), torch.full_like(x, value), x)


def pad(x: Tensor, sizes: list[Any], mode: str = "constant", _: Any = None) -> Any:
    """Return X with elements of its other end before and after it; other modes are left."""
    if mode != "circular" or not all(isinstance(it, int) and it >= 0 for it in sizes):
        return NotImplemented
    for back, (before, after) in enumerate(zip(sizes[::2], sizes[1::2], strict=True)):
        dim, length = x.ndim - 1 - back, x.shape[x.ndim - 1 - back]
        ends = (x.narrow(dim, length - before, before), x.narrow(dim, 0, after))
        x = torch.cat([it for it in (ends[0], x, ends[1]) if it.shape[dim] != 0], dim)
    return x


def nearest(x: Tensor, size: list[Any] | None, factors: list[float] | None = None) -> Any:
    """Return the nearest elements of X by PyTorch's own formula, where not all axes become as many whole ones."""
    sizes: list[Any] = [*x.shape[2:], *(size or ())]
    if not all(isinstance(it, int) for it in sizes):
        return NotImplemented
    after = size or [int(a * b) for a, b in zip(x.shape[2:], factors or (), strict=True)]
    grows = (b / a for a, b in zip(x.shape[2:], after, strict=True))
    if all(it % 1 == 0 for it in (*grows, *(factors or ()))):
        return NotImplemented
    return _upsample_nearest_vec(x, size, factors)


def embedding_bag(  # noqa: PLR0913, PLR0917  # of torch's own operation
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    _: bool = False,
    mode: int = 0,
    __: bool = False,
    factors: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sum (MODE 0), mean (1) or maximum (2) of the rows of each bag, zeros of an empty one.

    A bag is what lies between one of OFFSETS and the next. torch's other results are for its gradient.
    """
    rows = weight.index_select(0, indices)
    rows = rows if factors is None else rows * factors.unsqueeze(-1)
    places, starts = torch.arange(indices.shape[0], device=indices.device), offsets.unsqueeze(-1)
    begun = torch.ge(places, starts).to(weight.dtype)
    if include_last_offset:
        inside = begun[:-1] - begun[1:]
    else:
        inside = begun - torch.cat([begun[1:], torch.zeros_like(begun[:1])])
    if padding_idx is not None and padding_idx >= 0:
        inside = inside * torch.ne(indices, padding_idx).to(weight.dtype)
    count = inside.sum(-1, keepdim=True)
    if mode == 2:
        within = torch.gt(inside, 0).unsqueeze(-1)
        most = torch.where(within, rows, torch.full_like(rows, -torch.inf)).amax(1)
        found = torch.where(torch.gt(count, 0), most, torch.zeros_like(most))
    else:
        found = inside @ rows
        found = found / torch.clamp_min(count, 1.0) if mode == 1 else found
    return found, indices, offsets, offsets


# What none of the formats has, or few.
RARE: Final[Mapping[Any, Callable[..., Any]]] = {
    **dict.fromkeys((ATEN.copysign.Tensor, ATEN.copysign.Scalar), copysign),
    **dict.fromkeys(
        (ATEN._embedding_bag.default, ATEN._embedding_bag_forward_only.default), embedding_bag
    ),
    **dict.fromkeys((ATEN.embedding_bag.default, ATEN.embedding_bag.padding_idx), embedding_bag),
    ATEN.cummax.default: so_far(torch.ge),
    ATEN.cummin.default: so_far(torch.le),
    ATEN.kthvalue.default: smallest,
    ATEN.mode.default: most_often,
}
