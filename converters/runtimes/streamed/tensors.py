"""Tensors that are on disk until an operation needs them.

A parameter of such a kind can be used in any way that PyTorch knows: what is not written here reads
it whole. Products and look-ups with large ones read some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from .readings import Readings
from .weights import Weight, nbytes

BLOCK: Final = 8 << 20  # bytes read at a time, in the computation's dtype: more leave the cache
SEPARATE: Final = 2048  # rows of an embedding that are looked up one by one


class FileTensor(torch.Tensor):
    """A parameter whose values are read when an operation takes it.

    Attributes:
        weight: where they come from.
        readings: shared with other runs of the module.
        number: its place among the module's parameters.
        mark: what an operation's graph is to show of it; see ``marked``.
    """

    weight: Weight
    readings: Readings
    number: int
    mark: torch.Tensor | None

    @staticmethod
    def __new__(
        cls, weight: Weight, dtype: torch.dtype, readings: Readings, number: int
    ) -> FileTensor:
        """Return WEIGHT, the module's parameter NUMBER, as a tensor of DTYPE."""
        made: Any = torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=dtype)
        made.weight, made.readings, made.number, made.mark = weight, readings, number, None
        made._is_param = True  # what nn.Module takes for a parameter
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run FUNCTION on what is read."""
        kwargs = kwargs or {}
        special = SPECIAL.get(function)
        if special is not None:
            result = special(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if getattr(function, "__name__", "") == "__get__" or function in ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        args, kwargs = read_in(args), read_in(kwargs)
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run FUNCTION on what is read, where code comes past the level above."""
        args, kwargs = read_in(args), read_in(kwargs or {})
        return function(*args, **kwargs)

    def piece(self, start: int, stop: int) -> torch.Tensor:
        """Return rows START to STOP."""
        whole = not self.weight.shape or (start, stop) == (0, self.weight.shape[0])
        dtype = self.kind

        def load() -> tuple[torch.Tensor, int]:
            with _disable_current_modes(), torch.no_grad():
                rows = self.weight.whole() if whole else self.weight.rows(start, stop)
                rows = rows.to(dtype) if rows.is_floating_point() else rows
            return rows, rows.nbytes

        found = self.readings.get((self.number, start, stop), load)
        if self.mark is not None:
            found = Marked.apply(found, self.mark)  # type: ignore[no-untyped-call]
        return found

    @property
    def kind(self) -> torch.dtype:
        """The dtype, asked for beside any mode."""
        with torch._C.DisableTorchFunction():
            return self.dtype

    def all(self) -> torch.Tensor:  # type: ignore[override]
        """Return the whole tensor."""
        return self.piece(0, self.weight.shape[0] if self.weight.shape else 1)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the rows that are read together."""
        count = self.weight.shape[0]
        size = nbytes(self.weight.shape, self.kind)
        step = max(1, count * BLOCK // max(size, 1)) if self.weight.apart else count
        for start in range(0, count, step):
            yield start, min(start + step, count)


class Marked(torch.autograd.Function):
    """A tensor that an operation's graph shows to come from another one."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
        """Return TENSOR, marked by the other one."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_: Any, *__: Any) -> Any:
        """Pass nothing on: only the graph is looked at."""
        return None, None


def read(value: Any) -> Any:
    """Return VALUE, read if it is on disk."""
    return value.all() if isinstance(value, FileTensor) else value


def read_in(value: Any) -> Any:
    """Return VALUE, what is on disk in it read; ``tree_map`` takes longer than a small operation."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(map(read_in, value))
    if kind is dict:
        return {key: read_in(one) for key, one in value.items()}
    return tree_map(read, value) if isinstance(value, tuple | list | dict) else read(value)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Multiply by the rows of WEIGHT, some at a time."""
    if not isinstance(weight, FileTensor) or len(weight.weight.shape) != 2:
        return NotImplemented
    blocks = list(weight.blocks())
    if len(blocks) < 2:
        return NotImplemented
    bias, x = read(bias), read(x)
    parts = [
        functional.linear(x, weight.piece(*rows), None if bias is None else bias[slice(*rows)])
        for rows in blocks
    ]
    return torch.cat(parts, dim=-1)


def embedding(
    ids: Any, weight: Any, _: Any = None, max_norm: Any = None, *__: Any, **more: Any
) -> Any:
    """Look up rows of WEIGHT: those alone are read that are asked for."""
    if not isinstance(weight, FileTensor) or not weight.weight.apart:
        return NotImplemented
    if max_norm is not None or more.get("max_norm") is not None:
        return NotImplemented
    asked, places = torch.unique(ids, return_inverse=True)
    small = nbytes(weight.weight.shape, weight.kind) <= BLOCK
    if small or len(asked) > SEPARATE:
        return NotImplemented
    rows = torch.cat([weight.piece(int(row), int(row) + 1) for row in asked])
    return functional.embedding(places, rows)


def item(tensor: Any, index: Any) -> Any:
    """Return one row, such as one expert, without the others."""
    if not isinstance(tensor, FileTensor) or not tensor.weight.apart:
        return NotImplemented
    one = isinstance(index, int) or (
        isinstance(index, torch.Tensor)
        and index.ndim == 0
        and not index.is_floating_point()
        and index.dtype is not torch.bool
    )
    if not one or not tensor.weight.shape:
        return NotImplemented
    row = range(tensor.weight.shape[0])[int(index)]
    return tensor.piece(row, row + 1)[0]


def same(tensor: Any, *_: Any, **__: Any) -> Any:
    """Return TENSOR as it is."""
    return tensor


SPECIAL: Final[Mapping[Any, Callable[..., Any]]] = {
    functional.linear: linear,
    functional.embedding: embedding,
    torch.Tensor.__getitem__: item,
    torch.Tensor.detach: same,
    torch.Tensor.requires_grad_: same,
}
ABOUT: Final = frozenset(
    {
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.ndimension,
        torch.Tensor.numel,
        torch.Tensor.stride,
        torch.Tensor.is_floating_point,
        torch.Tensor.is_complex,
        torch.Tensor.element_size,
        torch.Tensor.__len__,
        torch.Tensor.__hash__,
        torch.is_floating_point,
    }
)


def install(module: nn.Module, path: str, tensor: FileTensor) -> None:
    """Put TENSOR in the place of MODULE's parameter at PATH."""
    owner, _, leaf = path.rpartition(".")
    module.get_submodule(owner)._parameters[leaf] = tensor  # type: ignore[assignment]
