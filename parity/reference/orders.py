"""Sums in another order: what another correct implementation may make of the same terms.

In which order terms are added is each implementation's own choice. Of many terms of one sign every order errs
by several roundings, and one that happens to be nearly exact says nothing of the others. Layers are moved by
their roundings elsewhere; sums between them, such as a product of what two layers gave, are added again here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PIECES: Final = 1024  # terms, or groups of them, that are added one after another
WORK: Final = (
    2**20
)  # numbers that are added in Python for one sum; of a large result larger groups are taken


def parts_of(count: int, numbers: int) -> list[int]:
    """Return how many of COUNT terms are added at once, one after another, for a sum of NUMBERS.

    >>> parts_of(4, 10), parts_of(9, WORK // 3), parts_of(1, 10)
    ([1, 1, 1, 1], [1, 3, 3, 2], [1])
    """
    left = count - 1
    pieces = min(left, PIECES, max(2, WORK // max(1, numbers)))
    size = -(-left // max(1, pieces))
    return [1, *(min(size, left - start) for start in range(0, left, size or 1))]


def wide(array: torch.Tensor) -> torch.Tensor:
    """Return ARRAY in float32 at least, in which sums of numbers of 16 bits are kept."""
    return array.float() if array.itemsize < 4 else array


def product(random: torch.Generator, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the matrix product of ONE ``(..., n, k)`` and OTHER ``(..., k, m)``, its terms in an order that RANDOM draws."""
    order = torch.randperm(one.shape[-1], generator=random)
    left, right = wide(one)[..., order], wide(other)[..., order, :]
    parts = parts_of(len(order), one.shape[:-1].numel() * other.shape[-1])
    columns, rows = torch.split(left, parts, -1), torch.split(right, parts, -2)
    total = columns[0] * rows[0]
    for column, row in zip(columns[1:], rows[1:], strict=True):
        total += column * row if column.shape[-1] == 1 else column @ row  # the same, in less time
    return total.to(one.dtype)


def sum_over(
    random: torch.Generator,
    array: torch.Tensor,
    axes: Sequence[int] | None = None,
    keep: bool = False,
) -> torch.Tensor:
    """Return the sum of ARRAY over AXES, all where there are none; they stay with one element if KEEP is true."""
    axes = sorted(at % array.ndim for at in (axes or range(array.ndim)))
    rest = [at for at in range(array.ndim) if at not in axes]
    flat = wide(array).permute(*rest, *axes).flatten(len(rest))
    order = torch.randperm(flat.shape[-1], generator=random)
    parts = torch.split(flat[..., order], parts_of(len(order), flat[..., 0].numel()), -1)
    found = functools.reduce(torch.add, (it.sum(-1) for it in parts)).to(array.dtype)
    return (
        found.reshape([1 if at in axes else it for at, it in enumerate(array.shape)])
        if keep
        else found
    )


def mean_over(random: torch.Generator, array: torch.Tensor, *about: Any) -> torch.Tensor:
    """Return the mean of ARRAY, see ``sum_over``."""
    found = sum_over(random, wide(array), *about)
    return (found / (array.numel() // max(1, found.numel()))).to(array.dtype)


def shifted(random: torch.Generator, bias: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
    """Return BIAS added to the product of FACTORS."""
    return bias + product(random, *factors)


aten = torch.ops.aten
SUMS: Final[Mapping[Any, Callable[..., torch.Tensor]]] = MappingProxyType(
    {
        aten.mm.default: product,
        aten.bmm.default: product,
        aten.addmm.default: shifted,
        aten.baddbmm.default: shifted,
        aten.sum.default: sum_over,
        aten.sum.dim_IntList: sum_over,
        aten.mean.default: mean_over,
        aten.mean.dim: mean_over,
    }
)


class OtherOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Let RANDOM draw the order of every sum that torch makes while CONCERN says so."""

    def __init__(self, random: torch.Generator, concern: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random, self.concern = random, concern

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what FUNC returns, its terms added in another order."""
        add = SUMS.get(func)
        if add is None or kwargs or not args[0].is_floating_point() or not math.prod(args[0].shape):
            return func(*args, **(kwargs or {}))
        return add(self.random, *args) if self.concern() else func(*args)
