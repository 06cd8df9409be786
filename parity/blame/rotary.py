"""Attention with rotary positions, recomputed from recorded projections to see what is wrong in it.

Rotation of halves (Su et al. 2021, as transformers does it); angles come from the recorded cosines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final

import numpy as np

from ...converters.values import Array
from .attention import Core, masks
from .evidence import INPUT, Observation, norm
from .wiring import SAME, siblings

OFFSETS: Final = tuple(step for step in range(-8, 9) if step)


@dataclass(frozen=True, eq=False)
class Rotary:
    """Queries, keys and values of one attention, and how they are turned.

    Attributes:
        parts: of queries, keys and values, path and array ``(batch, sequence, heads * head size)``.
        frequencies: angle per position, ``(head size / 2,)``.
        allowed: which keys each query may attend to.
        offsets: positions added to queries and to keys.
        turned: whether queries and keys are rotated at all.
        pairs: whether neighbours are rotated together, and not halves.
    """

    parts: tuple[tuple[str, Array], ...]
    frequencies: Array
    allowed: Array
    offsets: tuple[int, int] = (0, 0)
    turned: tuple[bool, bool] = (True, True)
    pairs: bool = False

    def core(self) -> Core:
        """Return the attention core with queries and keys rotated."""
        size = 2 * len(self.frequencies)
        heads = [_split(array, size) for _, array in self.parts]
        for index, (offset, turn) in enumerate(zip(self.offsets, self.turned, strict=True)):
            heads[index] = self._rotate(heads[index], offset) if turn else heads[index]
        times = heads[0].shape[1] // heads[1].shape[1]
        keys, values = (np.repeat(it, times, axis=1) for it in heads[1:])
        return Core((heads[0], keys, values), self.allowed, size**-0.5)

    def _rotate(self, heads: Array, offset: int) -> Array:
        angles = (np.arange(heads.shape[2]) + offset)[:, None] * self.frequencies
        cosine, sine = np.cos(angles), np.sin(angles)
        if self.pairs:
            left, right = heads[..., ::2], heads[..., 1::2]
            both = [left * cosine - right * sine, right * cosine + left * sine]
            return np.stack(both, axis=-1).reshape(heads.shape)
        left, right = np.split(heads, 2, axis=-1)
        return np.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


def _split(array: Array, size: int) -> Array:
    batch, length = array.shape[:2]
    return np.asarray(array, np.float64).reshape(batch, length, -1, size).swapaxes(1, 2)


def _frequencies(it: Observation) -> Array | None:
    """Return the angles of one position from recorded cosines; positions that count from 0."""
    for path, array in it.recording.items():
        if "rotary" in path and not path.endswith(INPUT) and array.ndim == 3:
            first = np.asarray(array[0], np.float64)
            if len(first) > 1 and np.allclose(first[0], 1):
                return np.asarray(np.arccos(np.clip(first[1, : first.shape[-1] // 2], -1, 1)))
    return None


def _projections(it: Observation, size: int) -> list[tuple[str, Array]]:
    batch, length = it.wanted.shape[:2]
    return [
        (path, array.reshape(batch, length, -1))
        for path, array in siblings(it).items()
        if array.shape[:2] == (batch, length) and array[0, 0].size % size == 0
    ]


def find_rotary(it: Observation) -> Rotary | None:
    """Return the attention that gives what the reference has where IT is, if one does."""
    frequencies = _frequencies(it) if it.site.endswith(INPUT) and it.wanted.ndim == 3 else None
    if frequencies is None:
        return None
    allowed = masks(it)
    wanted = it.rows(it.wanted)
    for parts in permutations(_projections(it, 2 * len(frequencies)), 3):
        widths = [array.shape[-1] for _, array in parts]
        if widths[0] != it.wanted.shape[-1] or widths[1] != widths[2] or widths[0] % widths[1]:
            continue
        for mask in (allowed["from left to right only"], allowed["with padding left out"]):
            found = Rotary(parts, frequencies, mask)
            if norm(it.rows(found.core()()) - wanted) <= max(SAME, it.own) * norm(wanted):
                return found
    return None


def _explains(it: Observation, other: Rotary) -> bool:
    found, wanted = it.pair
    return it.accounts(found, wanted, it.rows(other.core()()))


def swapped(it: Observation) -> str | None:
    """Projections in each other's place."""
    right = find_rotary(it)
    if right is None:
        return None
    roles = ("queries", "keys", "values")
    for one, other in ((1, 2), (0, 1), (0, 2)):
        parts = list(right.parts)
        parts[one], parts[other] = parts[other], parts[one]
        if parts[one][1].shape != parts[other][1].shape:
            continue
        if _explains(it, replace(right, parts=tuple(parts))):
            paths = " and ".join(path for path, _ in (parts[other], parts[one]))
            return f"{roles[one]} and {roles[other]} are exchanged ({paths})"
    return None


def turned(it: Observation) -> str | None:
    """Other positions, or another rotation."""
    right = find_rotary(it)
    if right is None:
        return None
    return next((words for words, other in _turns(right) if _explains(it, other)), None)


def _turns(right: Rotary) -> Iterator[tuple[str, Rotary]]:
    yield "neighbours are rotated together, not halves", replace(right, pairs=True)
    yield "queries and keys are not rotated", replace(right, turned=(False, False))
    yield "queries are not rotated", replace(right, turned=(False, True))
    yield "keys are not rotated", replace(right, turned=(True, False))
    for offset in OFFSETS:
        words = f"queries stand {offset:+d} positions from where the reference has them"
        yield words, replace(right, offsets=(offset, 0))


def rotated_core(it: Observation) -> Core | None:
    """Return the attention of rotated queries and keys that the reference's output is, if one is found."""
    found = find_rotary(it)
    return found.core() if found else None
