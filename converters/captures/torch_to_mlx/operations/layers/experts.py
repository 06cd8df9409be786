"""Matrix products in groups of rows, one matrix a group: what mixtures of experts are made of."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from ..registry import operation
from .linear import matmul


def _group_of(places: int, ends: mx.array) -> mx.array:
    """Return the group of each of so many rows; ENDS says where each group ends."""
    return mx.sum(mx.arange(places)[:, None] >= ends, axis=-1)


def rows_in_groups(
    x: mx.array, groups: int, ends: mx.array, multiply: Callable[[mx.array, mx.array], mx.array]
) -> mx.array:
    """Multiply the rows of X, shape ``(rows, in)``, each by the matrix of its group.

    Rows behind the last group give 0.

    Args:
        x: the rows, those of a group together.
        groups: how many there are.
        ends: where each group ends.
        multiply: ``(rows, 1, in)`` and the group of each row, rising, to ``(rows, 1, out)``.
    """
    group = _group_of(x.shape[0], ends)
    product = multiply(x[:, None], mx.minimum(group, groups - 1).astype(mx.uint32))[:, 0]
    return mx.where((group < groups)[:, None], product, mx.zeros_like(product))


def _rows_in_groups(x: mx.array, weight: mx.array, ends: mx.array) -> mx.array:
    """Multiply the rows of X, shape ``(rows, in)``, by their group's of WEIGHT, ``(groups, in, out)``."""
    if mx.default_device().type == mx.DeviceType.cpu:  # there, MLX has it in float32 only
        x, weight = x.astype(mx.float32), weight.astype(mx.float32)

    def multiply(rows: mx.array, group: mx.array) -> mx.array:
        return mx.gather_mm(rows, weight, rhs_indices=group, sorted_indices=True)

    return rows_in_groups(x, weight.shape[0], ends, multiply)


@operation("transformers.grouped_mm_fallback.default")
def _grouped_mm_fallback(input_: mx.array, weight: mx.array, offs: mx.array) -> mx.array:
    return _rows_in_groups(input_, weight, offs)


@operation("_grouped_mm")
def _grouped_mm(
    self: mx.array,
    mat2: mx.array,
    offs: mx.array | None = None,
    bias: mx.array | None = None,
    out_dtype: object = None,  # noqa: ARG001 - the result's dtype is seen to elsewhere
) -> mx.array:
    """Multiply in groups of rows, of columns, or of what is summed over, as the shapes say."""
    if offs is None:
        product = matmul(self, mat2)
    elif self.ndim == 2 and mat2.ndim == 3:
        product = _rows_in_groups(self, mat2, offs)
    elif mat2.ndim == 2 and self.ndim == 3:
        product = _rows_in_groups(mat2.T, mx.swapaxes(self, -1, -2), offs).T
    else:
        groups = mx.arange(offs.size)[:, None] == _group_of(self.shape[1], offs)
        product = matmul(self * groups[:, None].astype(self.dtype), mat2)
    return product if bias is None else product + bias
