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
from .attention import ALL, CAUSAL, ROLES, Core, fit_factor, masks, projections
from .evidence import INPUT, Observation, norm
from .wiring import SAME

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
        factor: of the scores, where it is not that of the head size.
    """

    parts: tuple[tuple[str, Array], ...]
    frequencies: Array
    allowed: Array
    offsets: tuple[int, int] = (0, 0)
    turned: tuple[bool, bool] = (True, True)
    pairs: bool = False
    factor: float | None = None

    def core(self) -> Core:
        """Return the attention core with queries and keys rotated."""
        size = 2 * len(self.frequencies)
        heads = [_split(array, size) for _, array in self.parts]
        for index, (offset, turn) in enumerate(zip(self.offsets, self.turned, strict=True)):
            heads[index] = self._rotate(heads[index], offset) if turn else heads[index]
        times = heads[0].shape[1] // heads[1].shape[1]
        keys, values = (np.repeat(it, times, axis=1) for it in heads[1:])
        return Core((heads[0], keys, values), self.allowed, self.factor or size**-0.5)

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


def _frequencies(it: Observation) -> Iterator[Array]:
    """Yield the angles of one position from recorded cosines; positions that count from 0."""
    seen: set[bytes] = set()
    for path, array in it.recording.items():
        if "rotary" in path and not path.endswith(INPUT) and array.ndim == 3:
            first = np.asarray(array[0], np.float64)
            if len(first) > 1 and np.allclose(first[0], 1) and first.tobytes() not in seen:
                seen.add(first.tobytes())
                yield np.asarray(np.arccos(np.clip(first[1, : first.shape[-1] // 2], -1, 1)))


def find_rotary(it: Observation) -> Rotary | None:
    """Return the attention that gives what the reference has where IT is, if one does."""
    if not it.site.endswith(INPUT) or it.wanted.ndim != 3:
        return None
    ways = (_find_turned(it, frequencies) for frequencies in _frequencies(it))
    return next((found for found in ways if found), None)


def _find_turned(it: Observation, frequencies: Array) -> Rotary | None:
    named = masks(it)
    causal, whole = named[CAUSAL], named[ALL]
    for parts in permutations(projections(it, 2 * len(frequencies)), 3):
        widths = [array.shape[-1] for _, array in parts]
        if widths[0] != it.wanted.shape[-1] or widths[1] != widths[2] or widths[0] % widths[1]:
            continue
        ways = [Rotary(parts, frequencies, mask) for mask in (causal, whole)]
        if _begins_with_values(it, ways[0]):
            ways.append(replace(ways[0], factor=fit_factor(it, ways[0].core(), it.rows(it.wanted))))
        if found := next((way for way in ways if _gives_wanted(it, way)), None):
            return found
    return None


def _gives_wanted(it: Observation, way: Rotary) -> bool:
    wanted = it.rows(it.wanted)
    return norm(it.rows(way.core()()) - wanted) <= max(SAME, it.own) * norm(wanted)


def _begins_with_values(it: Observation, way: Rotary) -> bool:
    """Say whether the first output is the first value, as from left to right at any scale of scores."""
    first = it.wanted[:1, :1]
    alone = np.ones((1, 1, 1, 1), bool)
    parts = tuple((path, array[:1, :1]) for path, array in way.parts)
    gap = norm(replace(way, parts=parts, allowed=alone).core()() - first)
    return gap <= max(SAME, it.own) * norm(first)


def _explains(it: Observation, other: Rotary) -> bool:
    found, wanted = it.pair
    return it.accounts(found, wanted, it.rows(other.core()()))


def swapped(it: Observation) -> str | None:
    """Projections in each other's place."""
    right = find_rotary(it)
    if right is None:
        return None
    for one, other in ((1, 2), (0, 1), (0, 2)):
        parts = list(right.parts)
        parts[one], parts[other] = parts[other], parts[one]
        if parts[one][1].shape != parts[other][1].shape:
            continue
        if _explains(it, replace(right, parts=tuple(parts))):
            paths = " and ".join(path for path, _ in (parts[other], parts[one]))
            return f"{ROLES[one]} and {ROLES[other]} are exchanged ({paths})"
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
