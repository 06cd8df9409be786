"""Recompute an attention core from the recorded queries, keys and values, to see what is wrong in it.

``softmax(s q k' + mask) v`` per head (Vaswani et al. 2017, equation 1), s = 1 / sqrt(head size).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final

import numpy as np

from ...converters.values import Array
from .evidence import Observation, first_wrong, norm, quiet_positions

HEAD_SIZES: Final = (64, 32, 128, 16, 8, 80, 96, 256, 24, 40, 48, 72, 4)  # the usual ones first
# Linear attention keeps a state and has no scores.
ATTENTION: Final = re.compile(r"(?<!linear_)(attention|attn)")
REPRODUCED: Final = 1e-9  # a float64 core recomputed in float64; float32 recordings reach 1e-6


@dataclass(frozen=True, eq=False)
class Core:
    """An attention core.

    Attributes:
        heads: queries, keys and values, each ``(batch, heads, sequence, head size)``.
        allowed: which keys each query may attend to, ``(batch, 1, queries, keys)``, bool.
        factor: the scale of the scores.
    """

    heads: tuple[Array, Array, Array]
    allowed: Array
    factor: float

    def __call__(self) -> Array:
        """Return what the core computes, ``(batch, sequence, heads * head size)``."""
        queries, keys, values = self.heads
        scores = self.factor * queries @ keys.swapaxes(-1, -2)
        scores = np.where(self.allowed, scores, -np.inf)
        weights = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True), -1e300))
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
        mixed = (weights @ values).swapaxes(1, 2)
        return np.asarray(mixed.reshape(*mixed.shape[:2], -1))


Find = Callable[[Observation], Core | None]


def attention_mask(it: Observation, find: Find | None = None) -> str | None:
    """Other keys attended to than the reference attends to, in the core that FIND finds."""
    core = (find or find_core)(it)
    if core is None:
        return None
    found, wanted = it.pair
    for words, allowed in masks(it).items():
        if it.accounts(found, wanted, it.rows(replace(core, allowed=allowed)())):
            return f"its output is that of attention {words}"
    return None


def attention_scale(it: Observation, find: Find | None = None) -> str | None:
    """Scores multiplied by another factor, in the core that FIND finds."""
    core = (find or find_core)(it)
    if core is None:
        return None
    found, wanted = it.pair
    factor = fit_factor(it, core, found)
    if not it.accounts(found, wanted, it.rows(replace(core, factor=factor)())):
        return None
    times = factor / core.factor
    return f"attention scores scaled by {factor:.5g}, {times:.4g} times the reference's {core.factor:.5g}"


def scores_alone(it: Observation) -> str | None:
    """Attention that is right at the first token, which sees itself alone, and wrong at others.

    Only where no core reproduces the reference, such as where one projection makes all heads.
    """
    if first_wrong(it) != 1 or not ATTENTION.search(it.site):
        return None
    return "right at the first token, which sees itself alone: its scores have another scale, mask or positions"


def sees_ahead(it: Observation) -> str | None:
    """Attention that is right at the last token, which sees all others in any case, and wrong at most others."""
    if it.found.ndim != 3 or it.found.shape[1] < 8 or not ATTENTION.search(it.site):
        return None
    quiet = quiet_positions(it)
    if not quiet[-1] or np.mean(~quiet[:-1]) <= 0.9:
        return None
    return "right at the last token, which sees all others: earlier ones see what follows them"


def fit_factor(it: Observation, core: Core, found: Array) -> float:
    """Return the factor of the scores with which CORE comes nearest to the rows FOUND."""
    factor = core.factor
    for _ in range(6):  # Gauss-Newton in one variable
        now = it.rows(replace(core, factor=factor)())
        step = 1e-4 * factor
        slope = (it.rows(replace(core, factor=factor + step)()) - now) / step
        factor += float(np.sum(slope * (found - now)) / max(norm(slope) ** 2, 1e-300))
    return factor


def find_core(it: Observation) -> Core | None:
    """Return the core that reproduces the reference's output from its inputs, if one does."""
    wanted = it.rows(it.wanted)
    parts = [array for array in it.inputs.values() if array.shape == it.wanted.shape]
    if it.wanted.ndim != 3 or it.found.shape != it.wanted.shape or len(parts) < 3:
        return None
    for core in _cores(it, parts):
        if norm(it.rows(core()) - wanted) <= max(REPRODUCED, it.own) * norm(wanted):
            return core
    return None


def _cores(it: Observation, parts: list[Array]) -> Iterator[Core]:
    width = it.wanted.shape[-1]
    named = masks(it)
    allowed = [named["with padding left out"], named["from left to right only"]]
    for size in (size for size in HEAD_SIZES if width % size == 0):
        split = [_heads(array, size) for array in parts]
        for query, key, value in permutations(split, 3):
            yield from (Core((query, key, value), mask, size**-0.5) for mask in allowed)


def _heads(array: Array, size: int) -> Array:
    batch, length, width = array.shape
    split = array.astype(np.float64).reshape(batch, length, width // size, size)
    return np.asarray(split.swapaxes(1, 2))


def masks(it: Observation) -> Mapping[str, Array]:
    """Return ways to mask, by what a reader calls them."""
    batch, length = it.wanted.shape[:2]
    real = np.ones((batch, length), bool)
    if it.mask is not None and it.mask.shape == real.shape:  # no encoder's, beside a decoder
        real = np.asarray(it.mask != 0)
    last = real & ~np.pad(real, ((0, 0), (0, 1)))[:, 1:]
    causal = np.tril(np.ones((length, length), bool))[None, None]
    keys = {
        "with padding left out": real,
        "to padding too: the mask is dropped": np.ones_like(real),
        "without the last token: the mask is one short": real & ~last,
        "to one padding token too: the mask is one long": real | np.roll(last, 1, axis=1),
    }
    found = {
        words: np.broadcast_to(it_[:, None, None], (batch, 1, length, length))
        for words, it_ in keys.items()
    }
    return found | {"from left to right only": causal & real[:, None, None]}
