"""How much of a due update a candidate tensor has, in words."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..candidate_tensor import CandidateTensor
from ..orders import ranges, shorten
from ..reference_index import unit
from .merge import Merge

NOTICED: Final = 0.05  # the error of the scale that a comparison must notice, to decide anything
Words = tuple[str, str, bool]  # kind and detail of a tensor, and whether it is right


def merge_of(tensor: CandidateTensor, source: str) -> Merge | None:
    """Return TENSOR beside SOURCE and its update, where both can be read."""
    if tensor.index.arrays is None:
        return None
    update, base = tensor.index.updates[source], tensor.index.arrays(source)
    u = unit(tensor.array, tensor.index.sketches[source])
    return Merge(tensor.array.reshape(update.shape), base.reshape(update.shape), update, u)


def share_by_numbers(merge: Merge, source: str) -> Words | None:
    """Return kind and detail of what a MERGE into SOURCE is, and whether it is right; ``None`` for no merge."""
    count, _ = merge.best
    if not count:
        return "merged", "base + update, to the last bit", True
    share = merge.share()
    if share is None:
        return None
    less, more = merge.wrong(-1), merge.wrong(1)
    if less or more:
        return _misscaled(merge, source, share, (less, more))
    shown = merge.by_number()
    if shown is None:
        return None
    near = abs(share - 1) <= merge.tolerance
    noticed = max(shown, merge.tolerance) if shown <= NOTICED else min(shown, merge.by_signs())
    detail = f"base + update, {share:.3f} times what was due but for {count} numbers"
    if near and noticed <= NOTICED:
        return "merged", f"{detail}; a scale off by {noticed:.0%} would be seen", True
    least = f"only one off by {noticed:.0%} or more" if noticed < math.inf else "no other scale"
    return "inconclusive", f"{detail}; {least} would be seen in {merge.kept.dtype}", False


def off_by_more(tensor: CandidateTensor, source: str) -> str:
    """Return which rows of TENSOR are further from SOURCE and its update than by rounding, in words."""
    merge = merge_of(tensor, source) if source in tensor.index.updates else None
    if merge is None:
        return ""
    wrong = np.concatenate([merge.off(it) for it in merge.everywhere()])
    rows = np.flatnonzero(wrong.any(axis=1))
    of = f"rows {ranges(rows)} ({len(rows)} of {len(wrong)})" if len(rows) < len(wrong) else "all"
    count = f"{np.count_nonzero(wrong)} of {wrong.size} numbers, in {of},"
    return f"{source} + another update than was due: {count} are further off than rounding"


def _misscaled(
    merge: Merge, source: str, share: float, wrong: tuple[list[str], list[str]]
) -> Words:
    """Return kind and detail of a MERGE that has less and more than was due in what is WRONG."""
    if all(part != ["all"] for part in wrong):
        sides = [
            f"{word} of it: {shorten(it)}"
            for word, it in zip(("less", "more"), wrong, strict=True)
            if it
        ]
        detail = f"{source} + another share of the update than was due; {'; '.join(sides)}"
        return "misscaled", detail, False
    if abs(share) <= merge.tolerance:
        detail = f"is {source} without its update ({share:.3f} times what was due): never merged"
        return "unmerged", detail, False
    share = merge.scale() if -1 < share < 3 else share  # least squares see what moved alone
    detail = f"base + {share:.4g} times the update that was due: check its scale (alpha / r)"
    return "misscaled", detail, False


def share_by_sketches(source: str, share: float, noise: float) -> Words:
    """Return kind and detail of base + SHARE of the update, known but for NOISE, and whether it is right."""
    near, words = max(0.01, 5 * noise), f"{share:.3f} times what was due"
    if near > NOTICED:
        detail = f"base + update, {words}, +-{near:.1g}: sketches cannot show it, their source can"
        return "inconclusive", detail, False
    if abs(share - 1) <= near:
        return "merged", f"base + update, {words}, +-{noise or 0.01:.1g}", True
    if abs(share) <= near:
        return "unmerged", f"is {source} without its update ({words}): never merged", False
    detail = f"base + {share:.4g} times the update that was due: check its scale (alpha / r)"
    return "misscaled", detail, False
