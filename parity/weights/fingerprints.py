"""Explain every weight of a candidate by the values of the reference's weights.

A converter cannot be its own check: no map is consulted here, only bytes and figures. What a map
says is compared afterwards, by ``expectations.disagreements``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from ...converters.values import Array, LowRank
from .alterations import explain_altered, merged_part
from .assembly import Cutter, assemble, carried, with_inconclusive
from .expectations import disagreements
from .reference_index import Explanation, Permitted, ReferenceIndex
from .sketches.casts import fingerprint
from .sketches.sketch import Sketch, Weights, sketch

__all__ = ["Explanation", "Weights", "disagreements", "explain"]

NOTHING: Final = Permitted()
OPEN: Final = frozenset({"unexplained", "cropped", "shuffled"})  # what a sum may explain after all


def explain(
    reference: Mapping[str, Sketch],
    candidate: Weights,
    *,
    reference_arrays: Callable[[str], Array] | None = None,
    updates: Mapping[str, LowRank] | None = None,
    unused: Callable[[], Collection[str]] = tuple,
    permitted: Permitted = NOTHING,
) -> list[Explanation]:
    """Explain each tensor of CANDIDATE, then name each reference tensor that none of them carries.

    Args:
        reference: sketch of every reference weight.
        candidate: the weights that are judged, read one at a time.
        reference_arrays: reads a reference weight by name; without it only what a sketch
            shows: not which element differs, nor a batch norm folded into a convolution.
        updates: low-rank updates that are due, by reference name.
        unused: returns the reference names that the candidate may lack (recomputed buffers, a pooler
            that no output uses, neutral weights that a compiler eliminates); asked if it lacks any.
        permitted: what the route is known to change.

    Returns:
        One explanation per candidate tensor, in its order, then one of kind ``missing`` or
        ``unused`` per reference tensor that no candidate tensor carries.

    >>> import numpy as np
    >>> from weighbridge.parity.weights.sketches.sketch import ArrayWeights, sketch
    >>> square = np.arange(9, dtype=np.float32).reshape(3, 3)
    >>> found = explain({"w": sketch(square)}, ArrayWeights({"w": square.T.copy()}))
    >>> [(it.kind, it.axes, it.ok) for it in found]
    [('transposed', (1, 0), True)]
    """
    index = ReferenceIndex(reference, reference_arrays, updates or {}, permitted)
    found = _by_parts(index, candidate, _by_hash(index, candidate, candidate.headers))
    rest = [name for name in candidate.headers if name not in found]
    index.free = frozenset(reference) - carried(found.values())
    found |= {name: explain_altered(index, name, candidate.read(name)) for name in rest}
    found |= _by_sums(index, candidate, found)
    explanations = [found[name] for name in candidate.headers]
    return with_inconclusive(index, explanations, _missing(index, explanations, unused))


def _by_hash(
    index: ReferenceIndex, candidate: Weights, names: Iterable[str]
) -> dict[str, Explanation]:
    """Explain those tensors of NAMES that are one reference tensor, or several of them whole."""
    found: dict[str, Explanation] = {}
    for name in names:
        array = candidate.read(name)
        it = index.look_up(name, array, fingerprint(array)) or assemble(index, name, array)
        found |= {name: it} if it else {}
    return found


def _by_parts(
    index: ReferenceIndex, candidate: Weights, found: dict[str, Explanation]
) -> dict[str, Explanation]:
    """Explain tensors that are rows of a reference tensor, or made of several's rows."""
    known = carried(found.values())
    free = [name for name in index.sketches if name not in known]
    pending = [name for name in candidate.headers if name not in found]
    return {**found, **Cutter(index, candidate, free).explain(pending)}


def _by_sums(
    index: ReferenceIndex, candidate: Weights, found: Mapping[str, Explanation]
) -> dict[str, Explanation]:
    """Explain tensors that base and update together explain where the base and its update do not.

    An expert with its update is a part of a stack, or a stack is made of such experts: then every
    update is in, before anything is compared.
    """
    due = [name for name in index.updates if name in index.sketches]
    failing = [name for name, it in found.items() if not it.ok and it.kind in OPEN]
    if not due or not failing or index.arrays is None:
        return {}
    read = partial(_merged, index.arrays, index.updates)
    sketches = {name: sketch(read(name)) for name in due}
    sums = Sums(index, {**index.sketches, **sketches}, read)
    known = {name: it for name, it in found.items() if name not in failing}
    made = _by_parts(sums, candidate, known | _by_hash(sums, candidate, failing))
    rest = [name for name in failing if name not in made]
    made |= {name: explain_altered(sums, name, candidate.read(name)) for name in rest}
    return {
        name: it._replace(detail=f"{it.detail}; updates merged")
        for name, it in made.items()
        if name in failing and (it.ok or not index.updates.keys().isdisjoint(carried([it])))
    }


class Sums(ReferenceIndex):
    """References with their updates in them, by hash; by value too, where a sum was rounded another way."""

    exact = False

    def __init__(
        self, index: ReferenceIndex, sketches: Mapping[str, Sketch], read: Callable[[str], Array]
    ) -> None:
        super().__init__(sketches, read, {}, Permitted(index.altered, index.reordered))
        self._apart = index

    def look_up(self, name: str, array: Array, value: str) -> Explanation | None:
        """Explain ARRAY, whose hash is VALUE, by one reference with its update, or without where none is due."""
        return super().look_up(name, array, value) or merged_part(self._apart, name, array)


def _merged(arrays: Callable[[str], Array], updates: Mapping[str, LowRank], name: str) -> Array:
    """Return reference tensor NAME, in float64 with its update where one is due."""
    array = arrays(name)
    return updates[name].applied_to(array) if name in updates else array


def _missing(
    index: ReferenceIndex, found: Sequence[Explanation], unused: Callable[[], Collection[str]]
) -> list[Explanation]:
    known = carried(found)
    absent = [name for name in index.sketches if name not in known]
    needless = unused() if absent else ()
    return [
        Explanation(name, name, "unused", "no output needs it", ok=True)
        if name in needless
        else Explanation(
            name, name, "missing", f"no weight of the candidate carries {name}", ok=False
        )
        for name in absent
    ]
