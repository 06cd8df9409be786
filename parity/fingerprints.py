"""Explain every weight of a candidate by the values of the reference's weights.

A converter is not its own witness: no map is consulted here, only bytes and figures. What a map
promised is compared afterwards, by ``promises.disagreements``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ..converters.values import Array, LowRank
from .alterations import explain_altered
from .assembly import Cutter, assemble, carried, untold
from .book import Book, Explanation
from .casts import fingerprint
from .promises import disagreements
from .sketches import Sketch, Weights

__all__ = ["Explanation", "Weights", "disagreements", "explain"]


def explain(
    reference: Mapping[str, Sketch],
    candidate: Weights,
    *,
    reference_arrays: Callable[[str], Array] | None = None,
    updates: Mapping[str, LowRank] | None = None,
    unused: Collection[str] = (),
    altered: Collection[str] = (),
) -> list[Explanation]:
    """Explain each tensor of CANDIDATE, then name each reference tensor that none of them carries.

    Args:
        reference: sketch of every reference weight.
        candidate: the weights that are judged, read one at a time.
        reference_arrays: reads a reference weight by name; without it whatever a sketch can tell
            is told: not which element differs, nor a batch norm folded into a convolution.
        updates: low-rank updates that are due, by reference name.
        unused: reference names that the candidate may lack (recomputed buffers, a pooler that no
            output uses, neutral weights that a compiler eliminates).
        altered: candidate names that the route is known to change by a factor, an offset, an
            order or a crop, which would be faults otherwise.

    Returns:
        One explanation per candidate tensor, in its order, then one of kind ``missing`` or
        ``unused`` per reference tensor that no candidate tensor carries.

    >>> import numpy as np
    >>> from weighbridge.parity.sketches import ArrayWeights, sketch
    >>> square = np.arange(9, dtype=np.float32).reshape(3, 3)
    >>> found = explain({"w": sketch(square)}, ArrayWeights({"w": square.T.copy()}))
    >>> [(it.kind, it.axes, it.ok) for it in found]
    [('transposed', (1, 0), True)]
    """
    book = Book(reference, reference_arrays, updates or {}, frozenset(altered))
    found = _by_parts(book, candidate, _by_hash(book, candidate))
    rest = (name for name in candidate.headers if name not in found)
    found |= {name: explain_altered(book, name, candidate.read(name)) for name in rest}
    explanations = [found[name] for name in candidate.headers]
    missing = _missing(book, explanations, unused)
    return untold(book, explanations, missing)


def _by_hash(book: Book, candidate: Weights) -> dict[str, Explanation]:
    """Explain tensors that are one reference tensor, or several of them whole."""
    found: dict[str, Explanation] = {}
    for name in candidate.headers:
        array = candidate.read(name)
        it = book.look_up(name, array, fingerprint(array)) or assemble(book, name, array)
        found |= {name: it} if it else {}
    return found


def _by_parts(
    book: Book, candidate: Weights, found: dict[str, Explanation]
) -> dict[str, Explanation]:
    """Explain tensors that are rows of a reference tensor, or made of several's rows."""
    known = carried(found.values())
    free = [name for name in book.sketches if name not in known]
    pending = [name for name in candidate.headers if name not in found]
    return found | Cutter(book, candidate, free).explain(pending)


def _missing(
    book: Book, found: Sequence[Explanation], unused: Collection[str]
) -> list[Explanation]:
    known = carried(found)
    absent = [name for name in book.sketches if name not in known]
    return [
        Explanation(name, name, "unused", "no output needs it", ok=True)
        if name in unused
        else Explanation(
            name, name, "missing", f"no weight of the candidate carries {name}", ok=False
        )
        for name in absent
    ]
