"""A merged weight number by number, where its base and its update are at hand."""

from __future__ import annotations

import math

import numpy as np

from ...converters.captures.mlprogram.arithmetic import LEAST
from .candidate_tensor import CLOSE, CandidateTensor
from .reference_index import unit


def each_merged(tensor: CandidateTensor, source: str, share: float) -> bool:
    """Say whether each number is base + SHARE of the update but for roundings of these, where both are known.

    An update's own numbers are sums, in which larger ones may cancel.
    """
    arrays, delta = tensor.index.arrays, tensor.index.delta(source)
    if arrays is None or delta is None:
        return True
    base = arrays(source).astype(np.float64).reshape(-1)
    due = share * delta.astype(np.float64).reshape(-1)
    gap = np.abs(tensor.array.astype(np.float64).reshape(-1) - base - due)
    terms = np.abs(base) + np.abs(due) + np.sqrt(np.mean(np.square(due)))
    least = LEAST if tensor.array.dtype == np.float16 else 0.0
    u = unit(tensor.array, tensor.index.sketches[source])
    return bool((gap <= CLOSE * (u * terms + least)).all())


def exact_share(tensor: CandidateTensor, source: str) -> float:
    """Return the share of the update of SOURCE that the TENSOR has, by least squares."""
    arrays, delta = tensor.index.arrays, tensor.index.delta(source)
    if arrays is None or delta is None:  # pragma: no cover - the caller has both
        return math.nan
    direction = delta.reshape(-1)
    base = arrays(source).astype(np.float64).reshape(-1)
    rest = tensor.array.astype(np.float64).reshape(-1) - base
    return float(rest @ direction / (direction @ direction))
