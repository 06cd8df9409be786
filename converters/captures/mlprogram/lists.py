"""Kernels on lists of tensors, which loops use to collect their outputs."""

# ruff: noqa: ARG001  (a kernel has the inputs of its MIL operation)
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from .kernels import Function, Ints, Tensors, scalar


class TensorList(tuple[Tensor | None, ...]):
    """A list that an op never changes: writing makes a new one. ``None`` was never written."""

    __slots__ = ()

    def replaced(self, items: Mapping[int, Tensor]) -> TensorList:
        """Return the list with ITEMS put in, longer where need be."""
        length = max(len(self), *(index + 1 for index in items), 0)
        old = (*self, *[None] * (length - len(self)))
        return TensorList(items.get(index, value) for index, value in enumerate(old))

    def filled(self, indices: Ints) -> Tensors:
        """Return the entries at INDICES, zeros where nothing was written."""
        like = next(value for value in self if value is not None)
        return [torch.zeros_like(like) if (v := self[i]) is None else v for i in indices]


def make_list(
    init_length: int = 1,
    dtype: str = "fp32",
    elem_shape: Any = None,
    dynamic_length: bool = True,
) -> list[TensorList]:
    """Make a list of entries not yet written."""
    return [TensorList([None] * init_length)]


def list_write(ls: TensorList, index: Any, value: Tensor) -> list[TensorList]:
    """Put VALUE at INDEX."""
    return [ls.replaced({int(scalar(index)): value})]


def list_scatter(ls: TensorList, indices: Ints, value: Tensor) -> list[TensorList]:
    """Put the rows of VALUE at INDICES."""
    return [ls.replaced(dict(zip(indices, value, strict=True)))]


def list_read(ls: TensorList, index: int) -> Tensor:
    """Return the entry at INDEX."""
    return ls.filled((index,))[0]


def list_gather(ls: TensorList, indices: Ints) -> Tensor:
    """Stack the entries at INDICES."""
    return torch.stack(ls.filled(indices))


def list_length(ls: TensorList) -> Tensor:
    """Count the entries."""
    return torch.tensor(len(ls))


KERNELS: Final[Mapping[str, Function]] = {
    "list_gather": list_gather,
    "list_length": list_length,
    "list_read": list_read,
    "list_scatter": list_scatter,
    "list_write": list_write,
    "make_list": make_list,
}
