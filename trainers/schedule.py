"""The learning rate of every update, the same number for every backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

# Progress after warm-up, 0 to 1 -> height between final (0) and peak (1).
SHAPES: Final[Mapping[str, Callable[[float], float]]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda _progress: 1.0,
}


def warmup_steps(steps: int, fraction: float) -> int:
    """Return how many of STEPS updates rise to the peak.

    >>> warmup_steps(100, 0.1)
    10
    """
    return round(steps * fraction)


def learning_rate(
    step: int, steps: int, *, peak: float, kind: str, warmup: float, final: float
) -> float:
    """Return the learning rate of update STEP, counted from 0.

    Linear from ``peak / w`` to ``peak`` over the first ``w`` updates, then KIND down to
    ``final * peak`` (Loshchilov and Hutter 2017, equation 5, without restarts).

    >>> shape = {"peak": 1.0, "kind": "cosine", "warmup": 0.2, "final": 0.0}
    >>> [round(learning_rate(step, 10, **shape), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    rising = warmup_steps(steps, warmup)
    if step < rising:
        return peak * (step + 1) / rising
    progress = (step - rising) / max(steps - rising, 1)
    return peak * (final + (1 - final) * SHAPES[kind](progress))
