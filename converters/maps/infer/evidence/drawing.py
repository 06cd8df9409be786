"""Weights to ask with: alike within a class of tensors, or all different, at a scale that shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from math import exp, log, prod
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np

from ....values import Array
from ..parts import Key, Part

MOST_TURNS: Final = 24


class Scale(NamedTuple):
    """How the numbers of a class are drawn.

    Attributes:
        positive: whether all are, since a variance may be among them.
        spread: their standard deviation.
    """

    positive: bool
    spread: float

    def of(self, normal: Array) -> Array:
        """Return NORMAL numbers at this scale."""
        drawn = normal * self.spread
        return 0.8 + np.abs(drawn) if self.positive else drawn


class Drawing:
    """Numbers for the tensors of two sides, each class at the scale that its torch tensors want.

    A matrix or a kernel should keep the size of what passes through it, so its spread is the root of
    what one output sums over.
    """

    def __init__(self, left: Sequence[Part]) -> None:
        classes: dict[Key, list[Part]] = {}
        for part in left:
            classes.setdefault(part.key, []).append(part)
        self.scales = {key: scale_of(parts) for key, parts in classes.items()}

    def base(self, part: Part) -> Array:
        """Return what PART holds while all parts of its key hold the same."""
        scale = self.scales[part.key]
        return place(scale.of(even(draws(part.key, "base"))), part)

    def change(self, key: Key) -> Array:
        """Return what a part holds while it alone differs, in the order of the key."""
        scale = self.scales[key]
        still, moved = even(draws(key, "base")), draws(key, "change")
        if scale.positive:
            return np.asarray(scale.of(still) + 2 * scale.spread * np.abs(moved))
        return np.asarray(scale.of(still + moved))

    def different(self, part: Part, number: int) -> Array:
        """Return values for PART that no other part has."""
        draw = np.random.default_rng([crc32(part.family.template.encode()), number])
        return self.scales[part.key].of(draw.normal(size=part.sizes))


def scale_of(parts: Sequence[Part]) -> Scale:
    """Return the scale of the PARTS of one class."""
    sums = []
    for part in parts:
        shape = [size for size in part.sizes[len(part.family.counts) :] if size != 1]
        if len(shape) < 2:
            return Scale(positive=True, spread=0.3)
        sums.append(log(prod(shape[1:])))
    return Scale(positive=False, spread=exp(-sum(sums) / len(sums) / 2))


def by_size(part: Part) -> list[int]:
    """Return the part's places, the smallest dimension first: the order of its key."""
    return sorted(part.places, key=lambda spot: part.sizes[spot])


def draws(key: Key, purpose: str) -> Array:
    """Return normal numbers that depend on KEY and PURPOSE only, (sizes of the key)."""
    seed = crc32(f"{key} {purpose}".encode())
    return np.asarray(np.random.default_rng(seed).normal(size=key[0]))


def even(array: Array) -> Array:
    """Return ARRAY averaged over all orders of its axes of one size, at the same scale."""
    ways = turns((array.shape, ""))
    total = sum((array.transpose(way) for way in ways), np.zeros_like(array))
    return np.asarray(total / len(ways) ** 0.5)


def place(array: Array, part: Part) -> Array:
    """Lay ARRAY, in the order of the key, out as PART's dimensions, 1 included."""
    order = by_size(part)
    turned = array.transpose([order.index(spot) for spot in part.places])
    return turned.reshape(part.sizes)


def turns(key: Key) -> list[tuple[int, ...]]:
    """Return the orders of a key's axes in which only axes of one size change places.

    >>> turns(((2, 3, 3), ""))
    [(0, 1, 2), (0, 2, 1)]
    """
    sizes = key[0]
    groups = [[at for at, s in enumerate(sizes) if s == one] for one in sorted(set(sizes))]
    ways = product(*(permutations(group) for group in groups))
    total = prod(prod(range(1, len(group) + 1)) for group in groups)
    flat = (tuple(at for group in way for at in group) for way in ways)
    return list(flat) if total <= MOST_TURNS else [tuple(range(len(sizes)))]
