"""Recompute an attention core from the recorded queries, keys and values, to see what is wrong in it.

``softmax(s q k' + mask) v`` per head (Vaswani et al. 2017, equation 1), s = 1 / sqrt(head size).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from typing import Final

import numpy as np

from ...converters.values import Array
from .evidence import INPUT, Observation, first_wrong, norm, quiet_positions, siblings

HEAD_SIZES: Final = (64, 32, 128, 16, 8, 80, 96, 256, 24, 40, 48, 72, 4)  # the usual ones first
# Linear attention keeps a state and has no scores.
ATTENTION: Final = re.compile(r"(?<!linear_)(attention|attn)")
REPRODUCED: Final = 1e-9  # a float64 core recomputed in float64; float32 recordings reach 1e-6
ROLES: Final = ("queries", "keys", "values")
ALL: Final = "with padding left out"
CAUSAL: Final = "from left to right only"
DROPPED: Final = "to padding too: the mask is dropped"
LATER: Final = "to later tokens too: the causal mask is dropped"
PARTS: Final = 5  # more that may be queries, keys or values are not tried in every order


@dataclass(frozen=True, eq=False)
class Core:
    """An attention core.

    Attributes:
        heads: queries, keys and values, each ``(batch, heads, sequence, head size)``.
        allowed: which keys each query may attend to, ``(batch, 1, queries, keys)``, bool.
        factor: the scale of the scores.
        names: where queries, keys and values were recorded.
    """

    heads: Sequence[Array]
    allowed: Array
    factor: float
    names: tuple[str, ...] = ROLES

    def __call__(self) -> Array:
        """Return what the core computes, ``(batch, sequence, heads * head size)``."""
        mixed = self.mixed().swapaxes(1, 2)
        return np.asarray(mixed.reshape(*mixed.shape[:2], -1))

    def mixed(self) -> Array:
        """Return the mixed values of each head, ``(batch, heads, sequence, head size)``."""
        queries, keys, values = self.heads
        scores = self.factor * queries @ keys.swapaxes(-1, -2)
        scores = np.where(self.allowed, scores, -np.inf)
        weights = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True), -1e300))
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
        return np.asarray(weights @ values)


Find = Callable[[Observation], Core | None]


def attention_mask(it: Observation, find: Find | None = None) -> str | None:
    """Other keys attended to than the reference attends to, in the core that FIND finds."""
    core = (find or find_core)(it)
    if core is None:
        return None
    found, wanted = it.pair
    named = masks(it)
    if not np.triu(core.allowed, 1).any():
        named = {LATER: named[DROPPED], f"{LATER}, {ALL}": named[ALL], **named}
    for words, allowed in named.items():
        if it.accounts(found, wanted, it.rows(replace(core, allowed=allowed)())):
            return f"its output is that of attention {words}"
    return None


def exchanged(it: Observation) -> str | None:
    """Queries, keys or values in each other's place."""
    core = find_core(it)
    if core is None:
        return None
    for one, other in combinations(range(3), 2):
        order = [{one: other, other: one}.get(role, role) for role in range(3)]
        if it.accounts(*it.pair, it.rows(replace(core, heads=[core.heads[at] for at in order])())):
            paths = " and ".join((core.names[one], core.names[other]))
            return f"{ROLES[one]} and {ROLES[other]} are exchanged ({paths})"
    return None


def heads_apart(it: Observation) -> str | None:
    """Heads that are not put side by side before the output projection."""
    core = find_core(it)
    if core is None or not it.accounts(*it.pair, it.rows(core.mixed().reshape(it.wanted.shape))):
        return None
    return "heads are reshaped as (batch, heads, sequence, size): bring the sequence before the heads first"


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


@lru_cache(maxsize=1)
def find_core(it: Observation) -> Core | None:
    """Return the core that reproduces the reference's output from what was recorded, if one does."""
    wanted = it.rows(it.wanted)
    if it.wanted.ndim != 3 or it.found.shape != it.wanted.shape:
        return None
    for core in _cores(it):
        if norm(it.rows(core()) - wanted) <= max(REPRODUCED, it.own) * norm(wanted):
            return core
    return None


def _cores(it: Observation) -> Iterator[Core]:
    width = it.wanted.shape[-1]
    named = masks(it)
    everywhere = named[DROPPED]
    allowed = [everywhere, np.tril(everywhere)]  # a mask among the inputs may be for something else
    if not named[ALL].all():
        allowed += [named[ALL], named[CAUSAL]]
    for size in (size for size in HEAD_SIZES if width % size == 0):
        for three in _threes(it, size):
            heads = [_heads(array, size) for _, array in three]
            names = tuple(path for path, _ in three)
            yield from (Core(heads, mask, size**-0.5, names) for mask in allowed)


def _threes(it: Observation, size: int) -> Iterator[tuple[tuple[str, Array], ...]]:
    """Yield what may be queries, keys and values, by path: recorded one by one, or as one array."""
    parts = {path: array for path, array in it.inputs.items() if array.shape == it.wanted.shape}
    beside = dict(projections(it, size)) if it.site.endswith(INPUT) else {}
    if ATTENTION.search(it.site):
        parts |= {path: array for path, array in beside.items() if array.shape == it.wanted.shape}
    if len(parts) <= PARTS:
        yield from permutations(parts.items(), 3)
    for path, array in beside.items():
        if array.shape[-1] == 3 * it.wanted.shape[-1]:
            thirds = np.split(array, 3, axis=-1)
            names = (f"the {number} third of {path}" for number in ("first", "second", "last"))
            yield from permutations(tuple(zip(names, thirds, strict=True)))


def projections(it: Observation, size: int) -> list[tuple[str, Array]]:
    """Return what may be queries, keys or values; norms of heads record these before the sequence."""
    batch, length = it.wanted.shape[:2]
    own = it.site.removesuffix(INPUT)
    found = []
    for path, array in siblings(it).items():
        heads_first = array.ndim == 4 and array.shape[2] == length != array.shape[1]
        rows = array.swapaxes(1, 2) if heads_first else array
        if path != own and rows.shape[:2] == (batch, length) and rows[0, 0].size % size == 0:
            found.append((path, rows.reshape(batch, length, -1)))
    return found


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
        ALL: real,
        DROPPED: np.ones_like(real),
        "without the last token: the mask is one short": real & ~last,
        "to one padding token too: the mask is one long": real | np.roll(last, 1, axis=1),
    }
    found = {
        words: np.broadcast_to(it_[:, None, None], (batch, 1, length, length))
        for words, it_ in keys.items()
    }
    return found | {CAUSAL: causal & real[:, None, None]}
