"""Whether an operation does the same to every row: found by trying it on some rows of all, and on those alone.

That holds for any operation, however it names its axes, and needs no table of them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...drawing import is_drawn
from .editing import ATEN, shape_of

_COUNT: Final = 6  # rows that are tried
_SOME: Final = ((0, 2, 3), (1,))  # a single row is squeezed, among others
_LARGEST: Final = 1 << 22  # elements of a random operand; larger ones hold one number
_PRODUCTS: Final = (ATEN.linear.default, ATEN.matmul.default)  # of large matrices
_RANDOM: Final = (ATEN.native_dropout.default, ATEN.dropout.default)  # on every element alike
_TOLERANCE: Final = {torch.float16: 1e-2, torch.bfloat16: 2e-2}


def is_by_row(node: Any, rows: Container[Any], sizes: Container[Any]) -> bool:
    """Tell whether NODE makes of some rows what it makes of all, there.

    Args:
        node: a call.
        rows: nodes that are rows.
        sizes: nodes that are their number.
    """
    target = node.target
    if target in _PRODUCTS and node.args[0] in rows:
        return len(shape_of(node.args[0])) > 1 and not any(x in rows for x in node.args[1:])
    if target in _RANDOM:
        return True
    if is_drawn(target):
        return False
    try:
        return _agree(node, _Trial(rows, sizes, torch.Tag.pointwise in target.tags))
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return False  # it does not run on such numbers, or on another number of rows


def _agree(node: Any, trial: _Trial) -> bool:
    with torch.no_grad():
        whole = pytree.tree_leaves(trial.run(node, torch.arange(_COUNT)))
        for some in map(torch.tensor, _SOME):
            part = pytree.tree_leaves(trial.run(node, some))
            if not all(_same(a, b, some) for a, b in zip(whole, part, strict=True)):
                return False
    return True


def _same(whole: torch.Tensor | None, part: torch.Tensor, some: torch.Tensor) -> bool:
    if whole is None or whole.numel() == 0:
        return True
    if whole.ndim == 0 or len(whole) != _COUNT or part.shape != (len(some), *whole.shape[1:]):
        return False
    room = _TOLERANCE.get(whole.dtype, 1e-4)
    return torch.allclose(whole[some], part, rtol=room, atol=room, equal_nan=True)


class _Trial:
    """Random operands, the same at each run."""

    def __init__(self, rows: Container[Any], sizes: Container[Any], numbers: bool) -> None:
        self.rows, self.sizes, self.numbers = rows, sizes, numbers
        self.random = torch.Generator().manual_seed(0)
        self.made: dict[Node, Any] = {}

    def run(self, node: Any, some: torch.Tensor) -> Any:
        """Return what NODE gives for SOME of the rows."""

        def operand(one: Node) -> Any:
            if one in self.sizes:  # a number to compute with is the same, whatever is chosen
                return _COUNT if self.numbers else len(some)
            made = (
                self.made.setdefault(one, self._operand(one))
                if one not in self.made
                else self.made[one]
            )
            return pytree.tree_map(lambda x: x[some], made) if one in self.rows else made

        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), operand)
        return node.target(*args, **kwargs)

    def _operand(self, node: Node) -> Any:
        count = _COUNT if node in self.rows else None
        return pytree.tree_map(lambda x: self._values(x, count), node.meta["val"])

    def _values(self, value: Any, count: int | None) -> Any:
        if not isinstance(value, torch.Tensor):
            return _hint(value)
        shape = [_hint(size) for size in value.shape[count is not None :]]
        shape = shape if count is None else [count, *shape]
        large = torch.Size(shape).numel() > _LARGEST
        numbers = torch.rand([1] * len(shape) if large else shape, generator=self.random)
        numbers = (
            numbers if value.dtype.is_floating_point or value.dtype.is_complex else numbers.round()
        )
        return numbers.to(value.dtype).expand(shape)


def _hint(size: Any) -> Any:
    """Return a number that SIZE may be."""
    if not isinstance(size, torch.SymInt):
        return size
    if size.node.hint is None:
        raise ValueError("a size that depends on values")
    return int(size.node.hint)
