"""How far quantized weights are from what they were."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...converters.quantization import Scheme, dequantize
from ...converters.values import Array


class Moved(NamedTuple):
    """Sums over numbers of a weight: of squared errors, and of squares of what they were."""

    error: float = 0.0
    size: float = 0.0

    def __add__(self, other: object) -> Moved:
        """Return both together."""
        if not isinstance(other, Moved):
            return NotImplemented
        return Moved(self.error + other.error, self.size + other.size)

    @property
    def relative(self) -> float:
        """The error as a part of the size, by root mean squares."""
        if self.error == 0:
            return 0.0
        return math.sqrt(self.error / self.size) if self.size else math.inf


def moved(values: Array, parts: Mapping[str, Array], scheme: Scheme) -> Moved:
    """Return how far PARTS are from VALUES, rows that they store."""
    return moved_to(values, dequantize(parts, scheme))


def moved_to(values: Array, exact: Array) -> Moved:
    """Return how far EXACT, float32, is from VALUES."""
    with np.errstate(all="ignore"):  # infinities and NaN show in the sums
        wide = values.astype(np.float32).reshape(-1)
        error = exact.reshape(-1) - wide
        return Moved(float(np.dot(error, error)), float(np.dot(wide, wide)))


def facts_of(
    sizes: tuple[int, int], schemes: Mapping[str, Scheme], errors: Mapping[str, Moved], share: str
) -> dict[str, Any]:
    """Return what the manifest says of a quantization.

    Args:
        sizes: bytes before and after.
        schemes: by name of the weight.
        errors: of these weights.
        share: which numbers the errors are of.
    """
    relative = {name: it.relative for name, it in errors.items()}
    worst = max(relative, key=lambda name: relative[name], default=None)
    return {
        "bytes": {"before": sizes[0], "after": sizes[1]},
        "error": {
            "of": share,
            "mean": sum(errors.values(), start=Moved()).relative,
            "worst": worst,
            "largest": relative.get(worst, 0.0) if worst else 0.0,
        },
        "weights": {
            name: {"scheme": str(scheme), "error": relative.get(name)}
            for name, scheme in schemes.items()
        },
    }
