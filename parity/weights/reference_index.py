"""The reference's weights, indexed by what a candidate may have made of them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import SequenceMatcher
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np

from ...converters.common.dtypes import CODE, FLOATS, NUMPY
from ...converters.values import Array, LowRank
from .sketches.casts import cast, fingerprint, roundoff
from .sketches.sketch import Sketch, sketch, squeeze


class Explanation(NamedTuple):
    """Where one tensor of a candidate comes from.

    Attributes:
        name: the candidate's tensor; for ``missing`` and ``unused`` the reference's.
        source: the reference tensor that explains it, or the nearest one; ``None`` if there is none.
        kind: a key of ``KINDS``.
        detail: one line for a reader.
        ok: whether it is what a correct candidate may carry.
        axes: candidate = reference transposed by these axes; ``None`` as it lies. Of a stack:
            reference = part transposed by these axes.
        also: other reference tensors that the same values explain.
        shape: the candidate's shape.
        constant: all elements are equal, so that no order of axes shows.
        parts: the reference tensors it is made of, in their order in it; empty where it is one.
        amount: what it is scaled by, or offset by.
        along: the axis on which the parts follow each other.
    """

    name: str
    source: str | None
    kind: str
    detail: str
    ok: bool
    axes: tuple[int, ...] | None = None
    also: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    constant: bool = False
    parts: tuple[str, ...] = ()
    amount: float | None = None
    along: int | None = None


KINDS: Final[Mapping[str, str]] = {
    "equal": "the same bytes",
    "cast": "the reference rounded or widened to the candidate's dtype",
    "transposed": "a matrix with its two axes exchanged",
    "permuted": "axes in another order",
    "stacked": "reference tensors along an axis of their own",
    "joined": "reference tensors side by side, all of each",
    "split": "some rows of a reference tensor, whose others are in other weights",
    "merged": "base + update, within the rounding of the candidate's dtype",
    "folded": "a batch norm's factor or shift is inside",
    "unmerged": "the base, although an update was due",
    "misscaled": "base + another multiple of the due update",
    "made": "what the converter of an ML program makes, by a rule that the values bear out",
    "rounded": "rounded to a narrower dtype than the one it is stored in",
    "close": "the reference but for rounding",
    "scaled": "a multiple of the reference",
    "offset": "the reference plus a constant",
    "computed": "what a program of the map makes of the reference, run again and compared",
    "cropped": "some rows of the reference",
    "shuffled": "the reference's rows or columns in another order",
    "flipped": "the reference turned round along an axis, such as a kernel",
    "zeroed": "all zeros, which the reference is not",
    "unexplained": "none of these",
    "inconclusive": "may be made of several references, which their sketches alone cannot show",
    "missing": "a reference tensor that no candidate tensor carries",
    "unused": "the same, and no output needs it",
}


class Permitted(NamedTuple):
    """What a route is known to do to candidate tensors, by name, that would be a fault otherwise.

    Attributes:
        altered: a factor, an offset, an order or a crop.
        reordered: rows in another order within what a tensor is joined of, or cut from.
    """

    altered: Collection[str] = ()
    reordered: Collection[str] = ()


class ReferenceIndex:
    """The reference's sketches, indexed by hash and by shape.

    Attributes:
        sketches: by reference name.
        arrays: reads a reference weight; ``None`` where only sketches are at hand.
        updates: due updates by reference name.
        altered: candidate names that may differ by a factor, an offset, an order or a crop.
        reordered: those whose rows may have another order within what they are joined of or cut from.
        exact: whether a right candidate has these very numbers, in its dtype.
        free: those that no candidate tensor carries; a wrong tensor is likelier one of these.
    """

    exact = True
    free: Collection[str] = ()

    def __init__(
        self,
        sketches: Mapping[str, Sketch],
        arrays: Callable[[str], Array] | None,
        updates: Mapping[str, LowRank],
        permitted: Permitted,
    ) -> None:
        self.sketches, self.arrays = sketches, arrays
        self.altered, self.reordered = map(frozenset, permitted)
        self.updates = {name: update for name, update in updates.items() if name in sketches}
        self._by_hash: dict[tuple[str, int], dict[str, list[str]]] = {}
        self._by_size: dict[int, list[str]] = defaultdict(list)
        self.by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
        self._deltas: dict[str, Sketch] = {}
        for name, it in sketches.items():
            self.by_shape[it.squeezed].append(name)
            self._by_size[math.prod(it.shape)].append(name)

    def same_bytes(self, code: str, size: int, value: str) -> list[str]:
        """Return the references of SIZE elements that have the hash VALUE at dtype CODE."""
        if (code, size) not in self._by_hash:
            known = self._by_hash[code, size] = {}
            for name in self._by_size.get(size, ()):
                for found in self.sketches[name].hashes_at(code):
                    known.setdefault(found, []).append(name)
        return list(dict.fromkeys(self._by_hash[code, size].get(value, ())))

    def look_up(self, name: str, array: Array, value: str) -> Explanation | None:
        """Explain ARRAY, whose hash is VALUE, by a reference that it equals or is a cast of."""
        names = self.same_bytes(CODE[array.dtype], array.size, value)
        if not names or (name in self.sketches and name not in names and is_constant(array)):
            return None  # a constant does not show where it comes from, a name does
        source = nearest(name, names)
        if source in self.updates and not self.vanishes(source, array):
            detail = f"equals {source}, whose update was due: never merged"
            return self.explanation(name, array, (source, "unmerged", detail), ok=False)
        kind, detail, ok = self._exact(source, array)
        also = tuple(other for other in names if other != source)
        return self.explanation(name, array, (source, kind, detail), ok=ok)._replace(also=also)

    def _exact(self, source: str, array: Array) -> tuple[str, str, bool]:
        it, code = self.sketches[source], CODE[array.dtype]
        shape = "" if it.squeezed == squeeze(array.shape) else f", {list(it.shape)} reshaped"
        if it.dtype == code:
            return "equal", f"equals {source}{shape}", True
        lost = 0
        if code in FLOATS:
            lost = int(np.count_nonzero(~np.isfinite(array)))
            lost -= it.moments.not_finite if lost else 0
        overflow = f", {lost} elements overflowed" if lost else ""
        return "cast", f"{it.dtype} to {code}{shape}{overflow}", lost == 0

    def explanation(
        self, name: str, array: Array, what: tuple[str | None, str, str], *, ok: bool
    ) -> Explanation:
        """Return the explanation of ARRAY by WHAT: source, kind and detail."""
        return Explanation(name, *what, ok, shape=array.shape, constant=is_constant(array))

    def delta(self, source: str) -> Array | None:
        """Return the due change of SOURCE in float64, in its shape.

        ``None`` where the reference's values are needed (DoRA) and not at hand.
        """
        update, shape = self.updates[source], self.sketches[source].shape
        if update.magnitude is None:
            return update.delta().reshape(shape)
        if self.arrays is None:
            return None
        base = self.arrays(source).astype(np.float64).reshape(update.shape)
        return (update.applied_to(base) - base).reshape(shape)

    def delta_sketch(self, source: str) -> Sketch | None:
        """Return the sketch of the due change of SOURCE; made once."""
        if source not in self._deltas:
            delta = self.delta(source)
            if delta is None:
                return None
            self._deltas[source] = sketch(delta)
        return self._deltas[source]

    def vanishes(self, source: str, array: Array) -> bool:
        """Return whether base + update rounds to ARRAY, which equals the base."""
        delta = self.delta(source)
        if delta is None:
            return False
        merged = array.astype(np.float64) + delta.reshape(array.shape)
        return fingerprint(cast(merged, CODE[array.dtype])) == fingerprint(array)

    def same_shape(self, shape: tuple[int, ...]) -> list[str]:
        """Return the references of SHAPE, axes of size 1 aside."""
        return self.by_shape.get(squeeze(shape), [])

    def first_sizes(self, rest: tuple[int, ...]) -> list[int]:
        """Return how many rows of shape REST references have, the largest first."""
        wanted = squeeze(rest)
        return sorted({it[0] for it in self.by_shape if it and it[1:] == wanted}, reverse=True)


def is_constant(array: Array) -> bool:
    """Return whether all elements of ARRAY are equal."""
    flat = array.reshape(-1)
    return flat.size > 0 and bool(flat[0] == flat[-1]) and bool((flat == flat[0]).all())


def unit(array: Array, it: Sketch) -> float:
    """Return the coarser unit roundoff of ARRAY and of the reference IT; 2^-53 for integers."""
    return max(roundoff(CODE[array.dtype]), roundoff(it.dtype), 2.0**-53)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the one of NAMES that is most like NAME; layer numbers count before letters.

    >>> nearest("layers.1.norm.weight", ["layer.0.norm.weight", "layer.1.LayerNorm.weight"])
    'layer.1.LayerNorm.weight'
    """
    options = list(names)
    return options[0] if len(options) == 1 else max(options, key=partial(likeness, name))


def ranked(name: str, names: Collection[str]) -> list[str]:
    """Return those of NAMES whose numbers are most like those of NAME, the likeliest first.

    The numbers of a part begin with its whole's, or the other way round: the layer comes first.

    >>> ranked("layer.1.experts.7.up", ["layer.0.experts.down", "layer.1.experts.up"])
    ['layer.1.experts.up']
    """
    wanted = _numbers(name)
    shared = {other: _shared(wanted, _numbers(other)) for other in names}
    most = max(shared.values(), default=0)
    nearby = [other for other, count in shared.items() if count == most]
    return sorted(nearby, key=partial(likeness, name), reverse=True)


def likeness(name: str, other: str) -> tuple[bool, bool, bool, float]:
    """Return how much OTHER is like NAME, most important first."""
    wanted, plain = _plain(name), _plain(other)
    return (
        other == name,
        re.findall(r"\d+", plain) == re.findall(r"\d+", wanted),
        plain.rsplit(".", 1)[-1] == wanted.rsplit(".", 1)[-1],
        SequenceMatcher(None, wanted, plain, autojunk=False).ratio(),
    )


def _numbers(name: str) -> list[str]:
    return re.findall(r"(?<=\.)\d+(?=\.)", name)


def _shared(one: list[str], other: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _plain(name: str) -> str:
    # The suffixes are coremltools' own.
    name = re.sub(r"(_to_fp16|_quantized|_palettized)+$", "", name.lower())
    return re.sub(r"[^a-z0-9]+", ".", name)


def lossless(array: Array, code: str) -> Array | None:
    """Return ARRAY at dtype CODE if that loses nothing and is narrower, else ``None``."""
    if NUMPY[code].itemsize >= array.dtype.itemsize:
        return None
    narrow = cast(array, code)
    return narrow if np.array_equal(narrow.astype(array.dtype), array) else None
