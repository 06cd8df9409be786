"""How far an output is from the reference, as a whole and at its worst token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...converters.common.arrays import unmasked
from ...converters.values import Array

# A token's error is relative to its own norm, but to no less than this fraction of the root mean
# square norm: a token that is zero in the reference has no scale of its own.
NORM_FLOOR = 1e-3


class Distance(NamedTuple):
    """Relative normwise errors against a float64 reference.

    Attributes:
        whole: ``||y - y64|| / ||y64||`` over all tokens that count.
        worst: the largest of the same quotient over single tokens (pixels, frames).
    """

    whole: float
    worst: float


def token_rows(array: Array) -> Array:
    """Return ARRAY as one row per token: features last, or second in an image of rank 4 or more.

    >>> token_rows(np.zeros((2, 5, 8))).shape, token_rows(np.zeros((2, 3, 4, 4))).shape
    ((10, 8), (32, 3))
    """
    if array.ndim > 3:
        array = np.moveaxis(array, 1, -1)
    tokens = math.prod(array.shape[:-1])  # -1 cannot stand for it where the features are none
    return array.reshape(tokens, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)


def select_tokens(array: Array, mask: Array | None) -> Array:
    """Return the rows of ARRAY, shape ``(tokens, features)``, that MASK lets count.

    Args:
        array: an output, shape ``(batch, sequence, ...)`` where the mask applies.
        mask: attention mask, shape ``(batch, sequence)``; outputs of another shape count whole.
    """
    rows = unmasked(array, mask)
    return (
        token_rows(array) if rows is array else rows.reshape(len(rows), math.prod(rows.shape[1:]))
    )


def relative(difference: Array, reference: Array) -> Distance:
    """Return the errors of rows DIFFERENCE on the scale of rows REFERENCE.

    >>> relative(np.array([[0.0, 0.2]]), np.array([[0.0, 2.0]]))
    Distance(whole=0.1, worst=0.1)
    """
    norms = np.linalg.norm(reference, axis=-1)
    errors = np.linalg.norm(difference, axis=-1)
    scale = float(np.sqrt(np.mean(norms**2))) if norms.size else 0.0
    if not errors.any():
        return Distance(0.0, 0.0)
    if scale == 0.0:
        return Distance(float("inf"), float("inf"))
    whole = float(np.linalg.norm(errors) / np.linalg.norm(norms))
    return Distance(whole, float(np.max(errors / np.maximum(norms, NORM_FLOOR * scale))))


def token_errors(output: Array, reference: Array) -> Array:
    """Return the relative error of every token of OUTPUT, each by its own norm, in float64.

    >>> token_errors(np.array([[3.0, 4.0], [0.0, 2.2]]), np.array([[3.0, 4.0], [0.0, 2.0]])).round(3)
    array([0. , 0.1])
    """
    found, wanted = (token_rows(np.asarray(it, np.float64)) for it in (output, reference))
    norms = np.linalg.norm(wanted, axis=-1)
    scale = max(float(np.sqrt(np.mean(norms**2))), np.finfo(np.float64).tiny)
    errors: Array = np.linalg.norm(found - wanted, axis=-1) / np.maximum(norms, NORM_FLOOR * scale)
    return errors


def distance(output: Array, reference: Array, mask: Array | None = None) -> Distance:
    """Measure OUTPUT against REFERENCE in float64; equal infinities are no difference.

    Args:
        output: what is judged, any floating dtype, the reference's shape.
        reference: the float64 output.
        mask: attention mask; positions where it is zero are left aside.

    >>> distance(np.array([[3.0, 4.5]]), np.array([[3.0, 4.0]]))
    Distance(whole=0.1, worst=0.1)
    """
    found = select_tokens(np.asarray(output, np.float64), mask)
    wanted = select_tokens(np.asarray(reference, np.float64), mask)
    same_infinity = np.isinf(wanted) & (found == wanted)
    found, wanted = (np.where(same_infinity, 0.0, rows) for rows in (found, wanted))
    return relative(found - wanted, wanted)


def resolution(reference: Array, mask: Array | None = None) -> float:
    """Return half of how far the tokens of REFERENCE are from their mean, relative to their size.

    An output with a larger error hardly tells one token from another, whatever else errs as much.
    Where all tokens are alike, or there is one, it is half of the size.

    >>> resolution(np.array([[1.0, 0.0], [-1.0, 0.0]])), resolution(np.array([[3.0, 4.0]]))
    (0.5, 0.5)
    """
    rows = np.nan_to_num(select_tokens(np.asarray(reference, np.float64), mask), posinf=0, neginf=0)
    size = float(np.linalg.norm(rows))
    spread = float(np.linalg.norm(rows - rows.mean(0))) / size if size else 0.0
    return (spread if spread > NORM_FLOOR else 1.0) / 2


def describe_non_finite(output: Array, reference: Array, mask: Array | None = None) -> str:
    """Return what is wrong with OUTPUT's infinities and NaNs, or an empty string.

    A NaN is always wrong; an infinity must stand where the reference has one of the same sign,
    and nowhere else.

    >>> describe_non_finite(np.array([1.0, -np.inf]), np.array([1.0, np.inf]))
    '1 infinity of the wrong sign'
    """
    found = select_tokens(np.asarray(output, np.float64), mask)
    wanted = select_tokens(np.asarray(reference, np.float64), mask)
    counts: Mapping[str, int] = {
        "NaN": int(np.isnan(found).sum()),
        "unexpected infinity": int((np.isinf(found) & np.isfinite(wanted)).sum()),
        "missing infinity": int((np.isfinite(found) & np.isinf(wanted)).sum()),
        "infinity of the wrong sign": int(
            (np.isinf(found) & np.isinf(wanted) & (found != wanted)).sum()
        ),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
