"""The smallest change of an element that comparing weights would name, found by changing one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from ...converters.values import Array
from .fingerprints import explain
from .reference_index import Explanation
from .sketches.sketch import ArrayWeights, Sketch, Weights

LARGEST: Final = 1 << 20  # elements of a tensor that is tried: it is explained again each time


class Change(NamedTuple):
    """A change of one element.

    Attributes:
        name: the candidate's weight.
        size: relative to the element.
    """

    name: str
    size: float


def smallest_change(
    reference: Mapping[str, Sketch],
    candidate: Weights,
    explanations: Iterable[Explanation],
    read: Callable[[str], Array] | None,
) -> Change | None:
    """Return the least change that is named, of the kind of weights where it is largest.

    The smallest weight of each kind is tried, its largest element first off by one unit in the last
    place, then by twice as much, and so on.

    Args:
        reference: sketches of the reference's weights.
        candidate: the weights that were explained.
        explanations: what explains them.
        read: reads a reference weight; ``None`` where there are only sketches.

    Returns:
        ``None`` where there is no weight to try, or where no change up to the element itself is named.
    """
    found = [
        named_from(name, candidate.read(name), known, read)
        for name, known in samples(reference, candidate, explanations)
    ]
    known_sizes = [it for it in found if it is not None]
    return (
        max(known_sizes, key=lambda it: it.size)
        if found and len(known_sizes) == len(found)
        else None
    )


def samples(
    reference: Mapping[str, Sketch], candidate: Weights, explanations: Iterable[Explanation]
) -> list[tuple[str, dict[str, Sketch]]]:
    """Return the smallest weight of each kind, and the sketches of what it is made of."""
    smallest: dict[str, tuple[int, str, dict[str, Sketch]]] = {}
    for it in explanations:
        header = candidate.headers.get(it.name)
        parts = it.parts or ((it.source,) if it.source else ())
        known = {name: reference[name] for name in parts if name in reference}
        if header is None or not it.ok or not known or not header.dtype.startswith(("F", "BF")):
            continue
        count = int(np.prod(header.shape, dtype=np.int64))
        if 0 < count <= min(LARGEST, smallest.get(it.kind, (LARGEST,))[0]):
            smallest[it.kind] = count, it.name, known
    return [(name, known) for _, name, known in smallest.values()]


def named_from(
    name: str, array: Array, known: Mapping[str, Sketch], read: Callable[[str], Array] | None
) -> Change | None:
    """Return the least change of one element of ARRAY after which KNOWN does not explain it."""
    at = int(np.argmax(np.abs(array.astype(np.float64))))
    before = float(array.flat[at])
    step = float(np.spacing(array.flat[at])) if before else 0.0
    while 0 < abs(step) <= abs(before):
        changed = array.copy()
        changed.flat[at] = before + step
        tried = explain(known, ArrayWeights({name: changed}), reference_arrays=read)
        if not next(it.ok for it in tried if it.name == name):
            return Change(name, abs(float(changed.flat[at]) - before) / abs(before))
        step *= 2
    return None
