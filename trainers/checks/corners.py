"""Corners of a loss, such as the zero of a ReLU: beside one, rounding decides which gradient is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np

from ...converters.values import Array
from ..data.batches import Batch
from ..steps.base import Arrays

DRAWS: Final = 10  # half of them are on the other side of a corner
ROUNDING: Final = 1e-6  # of a parameter: some roundings of float32


class Differentiable(Protocol):
    """What has gradients at values that it is given."""

    def assign(self, values: Arrays) -> None:
        """Set trainable parameters."""
        ...

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and the gradient of every trainable parameter; change nothing."""
        ...


def rounding_decides(
    reference: Differentiable,
    own: Mapping[str, Array],
    batch: Batch,
    *,
    seed: int,
    tolerance: float,
) -> bool:
    """Return whether gradients of REFERENCE itself change with parameters that are rounded otherwise than OWN.

    If they do not, no corner is near, and another backend whose gradients differ at these parameters is at
    fault there. The reference is left with its OWN values.

    Args:
        reference: in whose gradients a corner would show.
        own: its parameters by name.
        batch: what the gradients are of.
        seed: of the roundings.
        tolerance: change that is one, as a fraction of the largest gradient.
    """
    found = []
    for draw in range(DRAWS):
        reference.assign(_rounded(own, (seed, draw)) if draw else dict(own))
        found.append(reference.gradients(batch)[1])
        if draw and _apart(found[0], found[-1]) > tolerance:
            break
    reference.assign(dict(own))
    return _apart(found[0], found[-1]) > tolerance


def _rounded(own: Mapping[str, Array], seed: tuple[int, int]) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        name: (value * (1 + ROUNDING * random.standard_normal(value.shape))).astype(value.dtype)
        for name, value in own.items()
    }


def _apart(one: Arrays, other: Arrays) -> float:
    """Return the largest difference of two sets of gradients, as a fraction of the largest of ONE."""
    largest = max((float(np.abs(it).max(initial=0)) for it in one.values()), default=0.0)
    found = [float(np.abs(other[name] - it).max(initial=0)) for name, it in one.items()]
    return max(found, default=0.0) / largest if largest else max(found, default=0.0)
