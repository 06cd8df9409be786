"""Kernels on lists of tensors, which loops use to collect their outputs."""

# ruff: noqa: ARG001  (a kernel has the inputs of its MIL operation)
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from .kernel import Function, Ints, Tensors, scalar


class TensorList(NamedTuple):
    """A list that an op never changes: writing makes a new one.

    Attributes:
        entries: ``None`` was never written.
        shape: of an entry; sizes that vary are 0.
    """

    entries: tuple[Tensor | None, ...]
    shape: Ints

    def replaced(self, items: Mapping[int, Tensor]) -> TensorList:
        """Return the list with ITEMS put in, longer where need be."""
        length = max(len(self.entries), *(index + 1 for index in items), 0)
        old = (*self.entries, *[None] * (length - len(self.entries)))
        return TensorList(tuple(items.get(i, value) for i, value in enumerate(old)), self.shape)

    def filled(self, indices: Ints) -> Tensors:
        """Return the entries at INDICES, zeros where nothing was written."""
        blank = torch.zeros(self.shape)
        return [blank if (value := self.entries[i]) is None else value for i in indices]


def make_list(
    elem_shape: list[Any],
    init_length: int = 1,
    dtype: str = "fp32",
    dynamic_length: bool = True,
) -> TensorList:
    """Make a list of entries not yet written."""
    shape = tuple(0 if isinstance(size, str) else int(scalar(size)) for size in elem_shape)
    return TensorList((None,) * init_length, shape)


KERNELS: Final[Mapping[str, Function]] = {
    "list_gather": lambda ls, indices: torch.stack(ls.filled(indices)),
    "list_length": lambda ls: torch.tensor(len(ls.entries)),
    "list_read": lambda ls, index: ls.filled((index,))[0],
    "list_scatter": lambda ls, indices, value: ls.replaced(dict(zip(indices, value, strict=True))),
    "list_write": lambda ls, index, value: ls.replaced({index: value}),
    "make_list": make_list,
}
