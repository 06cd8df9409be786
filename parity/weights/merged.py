"""A merged weight number by number, where its base and its update are at hand."""

from __future__ import annotations

from itertools import product

import numpy as np

from ...converters.captures.mlprogram.arithmetic import LEAST
from ...converters.common.dtypes import CODE
from ...converters.values import Array
from .candidate_tensor import CLOSE, CandidateTensor
from .reference_index import unit
from .sketches.casts import cast


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


def exact_share(tensor: CandidateTensor, source: str) -> float | None:
    """Return the share of the update of SOURCE that the TENSOR has, by least squares; ``None`` if none can show.

    An update of a few units in the last place is changed by the rounding of the sum: the share is of
    what the dtype leaves of it. Base and update may have been rounded before; of these ways counts the
    one that makes most sense of the tensor.
    """
    arrays, delta = tensor.index.arrays, tensor.index.delta(source)
    if arrays is None or delta is None:  # pragma: no cover - the caller has both
        return None

    def rounded(array: Array) -> Array:
        return cast(array, CODE[tensor.array.dtype]).astype(np.float64)

    base, due = arrays(source).astype(np.float64).reshape(-1), delta.reshape(-1)
    before = rounded(base)
    rest = tensor.array.astype(np.float64).reshape(-1) - before
    ways = product((base, before), (due, rounded(due)))
    steps = [step for one, more in ways if (step := rounded(one + more) - before).any()]
    shares = [float(rest @ step) / float(step @ step) for step in steps]
    return min(shares, key=lambda share: abs(share - 1), default=None)
