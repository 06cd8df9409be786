"""A weight encoded for its inputs: column after column is rounded, and the rest makes up for it.

GPTQ (Frantar et al. 2022, algorithm 1), on grids searched for what is left of each group when it is
its turn; then codes and grids are improved in turn while everything else stays (`refining.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ....errors import UnsupportedError
from ...checkpoints.workers import Workers
from ...common.dtypes import dtype_of
from ...values import Array
from ..mlx import check_shape
from ..packing import pack_columns
from ..scheme import Scheme
from ..search.encoding import check_zero, cores, finite
from . import grids
from .order import Order, ordered
from .refining import refine

ROWS: Final = 1024  # worked on at a time


def encode(
    values: Array,
    products: Array,
    scheme: Scheme,
    dtype: str | np.dtype[Any],
    *,
    zero: str | None = None,
    threads: int | None = None,
) -> dict[str, Array]:
    """Return the parts, as MLX stores them, that err least in the output for the inputs of calibration.

    Args:
        values: the weight, float32 ``(rows, columns)``.
        products: sums of products of its inputs, ``(columns, columns)``: ``x.T @ x``.
        scheme: bits, group and mode.
        dtype: of the scales and biases of an affine scheme.
        zero: as for :func:`..search.encode`.
        threads: at most; as many as there are cores if ``None``.

    Raises:
        UnsupportedError: the shape does not suit, or a value is not finite or too large.
        BadInputError: the inputs are not finite, or all zero.

    >>> inputs = np.random.default_rng(0).standard_normal((500, 64)).astype("f4")
    >>> weight = np.linspace(-1, 1, 128, dtype="f4").reshape(2, 64)
    >>> sorted(encode(weight, inputs.T @ inputs, Scheme(4, 64), "float16"))
    ['biases', 'scales', 'weight']
    """
    check_shape(values.shape, scheme)
    check_zero(zero, scheme)
    if values.ndim != 2 or products.shape != (values.shape[1],) * 2:
        raise UnsupportedError(
            f"inputs with products of shape {list(products.shape)} are not those of a weight of shape"
            f" {list(values.shape)}"
        )
    job = _Job(finite(values), ordered(products, scheme.group_size), scheme, dtype_of(dtype), zero)
    Workers(threads or cores()).each(job.blocks(), job.encode)
    return job.parts


class _Job:
    """One weight on its way into parts, some rows at a time."""

    def __init__(
        self, values: Array, order: Order, scheme: Scheme, dtype: np.dtype[Any], zero: str | None
    ) -> None:
        self.values, self.order, self.scheme, self.dtype, self.zero = (
            values,
            order,
            scheme,
            dtype,
            zero,
        )
        rows, columns = values.shape
        groups = (rows, columns // scheme.group_size)
        self.parts: dict[str, Array] = {
            "weight": np.empty((rows, columns * scheme.bits // 32), "<u4"),
            "scales": np.empty(groups, dtype if scheme.affine else np.uint8),
        }
        if scheme.affine:
            self.parts["biases"] = np.empty(groups, dtype)

    def blocks(self) -> Iterator[slice]:
        """Yield slices of the rows."""
        rows = len(self.values)
        return (slice(at, min(at + ROWS, rows)) for at in range(0, rows, ROWS))

    def encode(self, rows: slice) -> None:
        """Encode ROWS."""
        wanted = np.ascontiguousarray(self.values[rows].T[self.order.columns])
        codes, found = self._rounded(wanted.copy())
        refine(wanted, codes, found, self.order.products, self.dtype if self._free else None)
        placed = np.empty(codes.shape, np.uint8)
        placed[self.order.columns] = codes
        self.parts["weight"][rows] = pack_columns(placed, self.scheme.bits)
        firsts = self.order.columns[:: self.scheme.group_size]
        for first, grid in zip(firsts, found, strict=True):
            for part, numbers in grid.parts().items():
                self.parts[part][rows, first // self.scheme.group_size] = numbers

    @property
    def _free(self) -> bool:
        """Whether scale and bias are bound by nothing."""
        return self.scheme.affine and self.zero is None

    def _rounded(self, rest: Array) -> tuple[Array, list[grids.Grid]]:
        """Return codes of REST, ``(columns, rows)`` in their order, which is used up, and grids."""
        factor, size = self.order.factor, self.scheme.group_size
        codes, found = np.empty_like(rest), []
        for start in range(0, len(rest), size):
            group = slice(start, start + size)
            own = factor[group, group]
            worth = 1 / np.diagonal(own).astype(np.float64) ** 2
            grid = grids.searched(rest[group], self.scheme, self.dtype, self.zero, worth)
            errors = _round_group(rest[group], codes[group], grid, own)
            rest[group.stop :] -= factor[group, group.stop :].T @ errors
            found.append(grid)
        return codes, found


def _round_group(rest: Array, codes: Array, grid: grids.Grid, factor: Array) -> Array:
    """Put codes of REST into CODES, column after column, and return the errors, scaled by FACTOR."""
    errors = np.empty_like(rest)
    for column in range(len(rest)):
        codes[column] = grid.nearest(rest[column])
        errors[column] = (rest[column] - grid.values(codes[column])) / factor[column, column]
        rest[column + 1 :] -= factor[column, column + 1 :, None] * errors[column]
    return errors
