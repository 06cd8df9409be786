"""Loops over the elements of groups, compiled: numpy goes through memory for each operation.

Arrays of elements are float32 ``(groups, group)``; importance is one, too, or ``None`` where all
elements count alike. Lines are float32 ``(groups,)`` each, in steps: ``scales * code + biases``. Sums are
those of one group, in float32, in an order that depends on the processor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np

from ...values import Array

Loop = TypeVar("Loop", bound=Callable[..., Any])
# Sums may be taken in any order; infinite and missing numbers keep their meaning.
ANY_ORDER: Final = frozenset({"arcp", "contract", "nsz", "reassoc"})


def compiled(loop: Loop, *, fast: frozenset[str] = frozenset()) -> Loop:
    """Return LOOP as machine code that runs outside of Python's lock.

    It is compiled at its first call, in a second or so, and kept on disk where a folder can be written.

    Args:
        loop: of arrays and numbers.
        fast: LLVM's flags of arithmetic that need not be exact, such as ``ANY_ORDER``; none by default.
    """
    compiler: Any = numba.njit(nogil=True, fastmath=set(fast), error_model="numpy")(loop)
    with contextlib.suppress(RuntimeError):  # no such folder: compiled again in each process
        compiler.enable_caching()
    return cast(Loop, compiler)


def in_any_order(loop: Loop) -> Loop:
    """Return LOOP compiled, its sums taken in any order."""
    return compiled(loop, fast=ANY_ORDER)


@in_any_order
def ends(values: Array, least: Array, largest: Array) -> None:
    """Put the ends of each group of VALUES into LEAST and LARGEST."""
    for group in range(values.shape[0]):
        low = high = values[group, 0]
        for place in range(values.shape[1]):
            low = min(low, values[group, place])
            high = max(high, values[group, place])
        least[group], largest[group] = low, high


@in_any_order
def in_steps(values: Array, begins: Array, density: Array, middle: np.float32, out: Array) -> None:
    """Put VALUES into OUT, counted in steps from the MIDDLE code of grids that begin at BEGINS."""
    for group in range(values.shape[0]):
        for place in range(values.shape[1]):
            out[group, place] = (values[group, place] - begins[group]) * density[group] - middle


@in_any_order
def totals(units: Array, importance: Array | None, count: Array, total: Array) -> None:
    """Put into COUNT and TOTAL how important each group of UNITS is, and its sum."""
    for group in range(units.shape[0]):
        weights = values = np.float32(0)
        for place in range(units.shape[1]):
            weight = np.float32(1) if importance is None else importance[group, place]
            weights += weight
            values += weight * units[group, place]
        count[group], total[group] = weights, values


@in_any_order
def _code(place: np.float32, top: np.float32) -> np.float32:
    code: np.float32 = np.rint(min(max(place, np.float32(0)), top))
    return code


@in_any_order
def _sums(
    units: Array, importance: Array | None, factor: np.float32, bias: np.float32, top: np.float32
) -> tuple[np.float32, np.float32, np.float32]:
    """Return the sums of the codes of one group, of their squares, and of codes times values."""
    codes = squares = products = np.float32(0)
    for place in range(units.shape[0]):
        code = _code((units[place] - bias) * factor, top)
        weighted = code if importance is None else code * importance[place]
        codes += weighted
        squares += weighted * code
        products += weighted * units[place]
    return codes, squares, products


@in_any_order
def sums(
    units: Array,
    importance: Array | None,
    factors: Array,
    biases: Array,
    top: np.float32,
    out: Array,
) -> None:
    """Put the three sums over the codes nearest by lines into OUT, ``(3, groups)``.

    FACTORS are one over the lines' scales.
    """
    for group in range(units.shape[0]):
        weights = None if importance is None else importance[group]
        found = _sums(units[group], weights, factors[group], biases[group], top)
        out[0, group], out[1, group], out[2, group] = found


@in_any_order
def best_grid(
    units: Array,
    importance: Array | None,
    grids: Array,
    count: Array,
    total: Array,
    top: np.float32,
) -> Array:
    """Return the sums, ``(3, groups)``, of the codes through which a line lowers the error most.

    GRIDS, ``(grids, 2)``, are tried: factor and bias of each. COUNT and TOTAL are those of ``totals``.
    """
    best = np.empty((3, units.shape[0]), np.float32)
    for group in range(units.shape[0]):
        weights = None if importance is None else importance[group]
        most = -math.inf
        for grid in range(grids.shape[0]):
            codes, squares, products = _sums(
                units[group], weights, grids[grid, 0], grids[grid, 1], top
            )
            mean = np.float64(codes) / count[group]
            spread, shared = squares - codes * mean, products - total[group] * mean
            gain = shared * shared / spread if spread > 0 else 0.0
            if gain > most:
                most = gain
                best[0, group], best[1, group], best[2, group] = codes, squares, products
    return best


@in_any_order
def errors(
    units: Array,
    importance: Array | None,
    scales: Array,
    biases: Array,
    top: np.float32,
    out: Array,
) -> None:
    """Put the squared error of each group by the codes nearest by lines into OUT."""
    for group in range(units.shape[0]):
        scale, bias, error = scales[group], biases[group], np.float32(0)
        factor = np.float32(0) if scale == 0 else np.float32(1) / scale
        for place in range(units.shape[1]):
            rest = _code((units[group, place] - bias) * factor, top) * scale + bias
            rest -= units[group, place]
            error += rest * rest if importance is None else rest * rest * importance[group, place]
        out[group] = error


@in_any_order
def codes(units: Array, factors: Array, biases: Array, top: np.float32, out: Array) -> None:
    """Put the codes nearest by lines into OUT, uint8."""
    for group in range(units.shape[0]):
        for place in range(units.shape[1]):
            code = _code((units[group, place] - biases[group]) * factors[group], top)
            out[group, place] = np.uint8(code)
