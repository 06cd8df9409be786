"""Alterations that a tensor of another shape hides: one part of a stack at fault, a kernel turned round."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations
from typing import Final

import numpy as np

from ...converters.values import Array
from .candidate_tensor import CandidateTensor
from .orders import shorten
from .reference_index import Explanation, Permitted, ReferenceIndex, ranked
from .sketches.casts import fingerprint
from .sketches.sketch import sketch

OPENED: Final = 3  # stacks, the likeliest by name: an expert has a gate and two projections
ALIKE: Final = 0.7  # cosine; of two that have nothing to do with each other it is near 0
Explain = Callable[[CandidateTensor], Explanation]


def flipped(tensor: CandidateTensor) -> Explanation | None:
    """Explain a tensor that is a reference turned round along one axis or more, axes in any order."""
    axes = [axis for axis, size in enumerate(tensor.array.shape) if size > 1]
    for count in range(1, len(axes) + 1) if len(axes) < 5 else ():
        for chosen in combinations(axes, count):
            found = _moved(tensor, np.flip(tensor.array, chosen))
            if found is not None:
                where = f"axis {chosen[0]}" if count == 1 else f"axes {chosen}"
                source, order = found
                detail = f"{source} turned round along {where}"
                made = tensor.explanation(source, "flipped", detail, ok=tensor.permitted)
                return made._replace(axes=order)
    return None


def _moved(tensor: CandidateTensor, array: Array) -> tuple[str, tuple[int, ...] | None] | None:
    """Return the reference that ARRAY is, and in which order its axes lie there if not as they are."""
    for order in permutations(range(array.ndim)):
        turned = np.ascontiguousarray(array.transpose(order))
        if tensor.index.same_shape(turned.shape):
            found = tensor.index.look_up(tensor.name, turned, fingerprint(turned))
            if found is not None and found.source is not None:
                moves = order != tuple(range(array.ndim))
                return found.source, tuple(map(int, np.argsort(order))) if moves else None
    return None


def in_other_order(tensor: CandidateTensor, explain: Explain) -> Explanation | None:
    """Explain a tensor that has another shape than any reference by the one with its axes in some order."""
    if tensor.peers or not 1 < tensor.array.ndim < 5:
        return None
    found: list[tuple[float, Explanation]] = []
    for order in permutations(range(tensor.array.ndim)):
        turned = np.ascontiguousarray(tensor.array.transpose(order))
        source = tensor.by_name
        if source in tensor.index.same_shape(turned.shape):
            other = CandidateTensor(tensor.index, tensor.name, turned)
            made = explain(other)
            detail = f"with its axes in the order {order}: {made.kind}, {made.detail}"
            gap = other.gap(tensor.index.sketches[source])
            found.append((gap, tensor.explanation(source, "unexplained", detail, ok=False)))
    return min(found, key=lambda it: it[0])[1] if found else None


def part_of_stack(tensor: CandidateTensor, explain: Explain) -> Explanation | None:
    """Explain a stack of which some parts are references and others are not: name these."""
    shape = tensor.array.shape[1:]
    if tensor.peers or not 1 < tensor.array.ndim < 5:
        return None
    for order in permutations(range(len(shape))):
        names = tensor.index.same_shape(tuple(shape[axis] for axis in order))
        parts = [np.ascontiguousarray(part.transpose(order)) for part in tensor.array]
        if 1 < len(parts) <= len(names):
            found = [tensor.index.look_up(tensor.name, it, fingerprint(it)) for it in parts]
            if any(found):
                return _faults(tensor, parts, found, explain)
    return None


def of_stack(tensor: CandidateTensor, explain: Explain) -> Explanation | None:
    """Explain a tensor that has the shape of the parts of a reference stack by the nearest part.

    Only where the reference's values are at hand, and some part is near.
    """
    index, shape = tensor.index, tensor.array.shape
    stacks = [name for name, it in index.sketches.items() if it.shape[1:] == shape]
    if tensor.peers or index.arrays is None or not shape:
        return None
    found: list[tuple[float, str, int, Array]] = []
    for source in ranked(tensor.name, stacks)[:OPENED]:
        stack = index.arrays(source)
        alike = [_likeness(tensor.array, part) for part in stack]
        number = int(np.argmax(alike))
        found.append((alike[number], source, number, stack[number]))
    likeness, source, number, part = max(
        found, key=lambda it: it[0], default=(0.0, "", 0, tensor.array)
    )
    if likeness < ALIKE:
        return None
    named = f"{source}[{number}]"
    alone = ReferenceIndex({named: sketch(part)}, lambda _: part, {}, Permitted())
    made = explain(CandidateTensor(alone, tensor.name, tensor.array))
    detail = f"part {number} of {source}: {made.kind}, {made.detail}"
    return tensor.explanation(source, "unexplained", detail, ok=False)


def _likeness(one: Array, other: Array) -> float:
    """Return the cosine between ONE and OTHER, whatever its sign; 0 where it is no number."""
    left, right = (it.astype(np.float64).ravel() for it in (one, other))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = abs(float(left @ right / np.sqrt((left @ left) * (right @ right))))
    return found if found <= np.inf else 0.0


def _faults(
    tensor: CandidateTensor,
    parts: list[Array],
    found: list[Explanation | None],
    explain: Explain,
) -> Explanation:
    known = [str(it.source) for it in found if it]
    free = [it for it in tensor.index.same_shape(parts[0].shape) if it not in known]
    wrong, sources = [], []
    for number, (part, it) in enumerate(zip(parts, found, strict=True)):
        source = it.source if it else _of_number(known[0], number, free)
        sources.append(str(source))
        if it is None:
            made = explain(CandidateTensor(tensor.index, str(source), part))
            wrong.append(f"part {number} of {len(parts)}, {source}: {made.kind}, {made.detail}")
    detail = f"{'; '.join(wrong[:3])}; the other {len(known)} agree"
    made = tensor.explanation(
        sources[0], "unexplained", f"stack of {shorten(sources, 2)}, {detail}", ok=False
    )
    return made._replace(parts=tuple(sources))


def _of_number(sibling: str, number: int, free: list[str]) -> str:
    """Return which of FREE is number NUMBER of the stack that SIBLING is in."""
    own = sibling.split(".")
    at = [place for place, part in enumerate(own) if part.isdigit()][-1:]
    named = ".".join(str(number) if place in at else part for place, part in enumerate(own))
    return named if named in free else next(iter(ranked(named, free)), named)
