"""In which order columns are rounded, and how the rest makes up for the error of each."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import BadInputError
from ...values import Array

DAMPING: Final = (
    0.01  # of the mean square of an input, added to each (Frantar et al. 2022, section 3.3)
)


class Order(NamedTuple):
    """What the inputs say of the columns of a weight.

    Attributes:
        columns: their numbers, in the order in which they are rounded; groups stay together.
        products: mean products of the inputs, damped, float32 ``(columns, columns)``, in that order.
        factor: upper triangle whose square is the inverse of that, float32: its rows tell how the
            columns that follow make up for an error.
    """

    columns: NDArray[np.int64]
    products: Array
    factor: Array


def ordered(products: Array, group_size: int) -> Order:
    """Return the order for inputs with these PRODUCTS, ``(columns, columns)``: the largest first.

    Raises:
        BadInputError: PRODUCTS are not finite, or those of no inputs.
    """
    sizes = np.diagonal(products).astype(np.float64)
    if not np.isfinite(products).all() or not sizes.mean() > 0:
        raise BadInputError("inputs of calibration are not finite, or all zero: check the text")
    groups = sizes.reshape(-1, group_size)
    inner = (
        np.argsort(-groups, axis=1, kind="stable") + group_size * np.arange(len(groups))[:, None]
    )
    columns = inner[np.argsort(-groups.mean(1), kind="stable")].reshape(-1)
    damped = products[np.ix_(columns, columns)].astype(np.float64) / sizes.mean()
    return Order(columns, *_factored(damped))


def _factored(products: NDArray[np.float64]) -> tuple[Array, Array]:
    """Return PRODUCTS damped until they have an inverse, and the upper factor of that."""
    damping = DAMPING
    while True:
        damped = products + damping * np.eye(len(products))
        try:
            reversed_factor = np.linalg.cholesky(damped[::-1, ::-1])
        except np.linalg.LinAlgError:
            damping *= 10
            continue
        factor = np.linalg.inv(reversed_factor[::-1, ::-1])
        return damped.astype(np.float32), np.triu(factor).astype(np.float32)
