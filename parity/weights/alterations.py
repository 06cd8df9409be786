"""What became of a tensor that no hash explains: a table of tests by value, the first that holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import permutations
from typing import Final

import numpy as np

from ...converters.common.dtypes import CODE, NUMPY
from ...converters.values import Array
from .candidate_tensor import CLOSE, CandidateTensor, row_tolerance
from .differences import describe_differences
from .folding import explain_folded
from .layered import flipped, in_other_order, of_stack, part_of_stack
from .merges.shares import merge_of, off_by_more, share_by_numbers, share_by_sketches
from .orders import describe_order, match_rows
from .reference_index import Explanation, ReferenceIndex, is_constant, lossless, ranked, unit
from .sketches.casts import cast, fingerprint, roundoff
from .sketches.sketch import Sketch, projections, row_sums, squeeze

Test = Callable[[CandidateTensor], Explanation | None]


def explain_altered(index: ReferenceIndex, name: str, array: Array) -> Explanation:
    """Return the first explanation that holds for ARRAY, or why there is none."""
    return _altered(CandidateTensor(index, name, array))


def _altered(tensor: CandidateTensor) -> Explanation:
    return next(found for test in TESTS if (found := test(tensor)) is not None)


def _not_finite(tensor: CandidateTensor) -> Explanation | None:
    count = tensor.sketch.moments.not_finite
    if count == 0:
        return None
    detail = (
        f"{count} of {tensor.array.size} elements are infinite or NaN; nearest: {tensor.by_name}"
    )
    return tensor.explanation(tensor.by_name, "unexplained", detail, ok=False)


def _zeroed(tensor: CandidateTensor) -> Explanation | None:
    if tensor.array.size == 0 or np.any(tensor.array):
        return None
    kind = "zeroed" if tensor.peers else "unexplained"
    return tensor.explanation(tensor.by_name, kind, f"all zeros, {tensor.by_name} is not", ok=False)


def _merged(tensor: CandidateTensor) -> Explanation | None:
    return _merged_as_it_lies(tensor, tensor.peers) or _merged_transposed(tensor)


def _merged_transposed(tensor: CandidateTensor) -> Explanation | None:
    if tensor.array.ndim != 2 or not tensor.index.updates:
        return None
    turned = CandidateTensor(tensor.index, tensor.name, np.ascontiguousarray(tensor.array.T))
    found = _merged_as_it_lies(turned, turned.peers)
    return None if found is None else _as_permuted(found, (1, 0), tensor)


def merged_part(index: ReferenceIndex, name: str, part: Array) -> Explanation | None:
    """Explain PART of the candidate's tensor NAME as a reference with some share of its update, as it lies."""
    tensor = CandidateTensor(index, name, part)
    likely = ranked(name, [it for it in tensor.peers if it in index.updates])
    return _merged_as_it_lies(tensor, likely)


def _merged_as_it_lies(tensor: CandidateTensor, names: Collection[str]) -> Explanation | None:
    due = [name for name in names if name in tensor.index.updates]
    fits = [(*fit, name) for name in due if (fit := _update_share(tensor, name)) is not None]
    if not fits:
        return None
    gap, share, noise, source = min(fits, key=lambda fit: (fit[0], fit[3] != tensor.name))
    if gap > CLOSE * unit(tensor.array, tensor.index.sketches[source]):
        return None
    merge = merge_of(tensor, source)
    found = share_by_numbers(merge, source) if merge else share_by_sketches(source, share, noise)
    return None if found is None else tensor.explanation(source, *found[:2], ok=found[2])


def _update_share(tensor: CandidateTensor, source: str) -> tuple[float, float, float] | None:
    """Fit ``tensor = base + share * update``; return gap, share and the share's standard error."""
    base, delta = tensor.index.sketches[source], tensor.index.delta_sketch(source)
    if delta is None or delta.norm == 0:
        return None
    direction = delta.projections
    rest = tensor.sketch.projections - base.projections
    share = float(rest @ direction / (direction @ direction))
    gap = tensor.gap(base, shift=share * direction)
    noise = unit(tensor.array, base) * tensor.sketch.norm / delta.norm / math.sqrt(len(direction))
    return gap, share, noise


def _rounded(tensor: CandidateTensor) -> Explanation | None:
    for code in ("BF16", "F16"):
        narrow = lossless(tensor.array, code)
        found = (
            None
            if narrow is None
            else tensor.index.look_up(tensor.name, narrow, fingerprint(narrow))
        )
        if found is not None and found.ok:
            own = NUMPY[CODE[tensor.array.dtype]].name
            detail = f"{found.source} rounded to {NUMPY[code].name}, stored as {own}"
            return found._replace(kind="rounded", detail=detail, ok=tensor.permitted)
    return None


def _permuted(tensor: CandidateTensor) -> Explanation | None:
    shape = tensor.array.shape
    if not 2 <= len(squeeze(shape)) <= len(shape) <= 5 or tensor.kept:
        return None
    for back in permutations(range(len(shape))):
        turned = tensor.array.transpose(back)
        if _moves_nothing(back, shape) or not tensor.index.same_shape(turned.shape):
            continue
        if not any(_may_be(tensor, name) for name in tensor.index.same_shape(turned.shape)):
            continue
        found = tensor.index.look_up(tensor.name, turned, fingerprint(turned))
        if found is not None:
            return _as_permuted(found, back, tensor)
    return None


def _as_permuted(found: Explanation, back: tuple[int, ...], tensor: CandidateTensor) -> Explanation:
    axes = tuple(int(axis) for axis in np.argsort(back))
    named = found.kind if found.kind not in {"equal", "cast"} else None
    kind = named or ("transposed" if len(squeeze(tensor.array.shape)) == 2 else "permuted")
    detail = f"{found.source} with axes {axes}; {found.detail}"
    return found._replace(kind=kind, axes=axes, shape=tensor.array.shape, detail=detail)


def _moves_nothing(axes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    kept = [axis for axis in axes if shape[axis] != 1]
    return kept == sorted(kept)


def _may_be(tensor: CandidateTensor, name: str) -> bool:
    """Return whether the order-free figures agree, to the coarsest dtype in use."""
    own, other = tensor.sketch.moments, tensor.index.sketches[name].moments
    tolerance = 8 * max(unit(tensor.array, tensor.index.sketches[name]), 1e-12)
    scale = max(abs(other.least), abs(other.largest), 1e-300)
    near = abs(own.rms - other.rms) <= tolerance * max(other.rms, 1e-300)
    return near and max(abs(own.least - other.least), abs(own.largest - other.largest)) <= (
        tolerance * scale
    )


def _affine(tensor: CandidateTensor) -> Explanation | None:
    if tensor.array.size < 3:
        return None  # any two numbers are a multiple of any two others, nearly
    fits = [_affine_fit(tensor, name) for name in tensor.peers]
    if not fits:
        return None
    gap, kind, number, source = min(fits, key=lambda fit: (fit[0], fit[3] != tensor.by_name))
    if gap > CLOSE * unit(tensor.array, tensor.index.sketches[source]):
        return None
    if kind == "close":
        near = f"{source} {_nearness(tensor, source, gap)}; {describe_differences(tensor, source)}"
        detail = off_by_more(tensor, source) or near
    else:
        detail = f"{number:.6g} * {source}" if kind == "scaled" else f"{source} {number:+.6g}"
    if kind == "close" or not tensor.permitted:
        found = tensor.explanation(source, kind, detail, ok=tensor.permitted)
        return found if kind == "close" else found._replace(amount=number)
    wrong = _wrong_digits(tensor, source, kind, number)
    detail = f"{detail}, but {wrong}" if wrong else detail
    return tensor.explanation(source, kind, detail, ok=not wrong)._replace(amount=number)


def _nearness(tensor: CandidateTensor, source: str, gap: float) -> str:
    """Say whether a GAP from SOURCE is that of rounding once, or wider, as of a copy in fewer bits."""
    roundings = gap / unit(tensor.array, tensor.index.sketches[source])
    if roundings <= 1:
        return "within rounding"
    return f"but for {roundings:.1f} times what rounding would move, as a copy in fewer bits is"


def _wrong_digits(tensor: CandidateTensor, source: str, kind: str, number: float) -> str:
    """Return which elements are not what SOURCE scaled or offset rounds to; empty if all are.

    A sketch cannot see 1 % in 16 bits, and the outputs are compared with the digits kept here.
    """
    if tensor.index.arrays is None:
        return ""
    found = tensor.array.reshape(-1)
    base = tensor.index.arrays(source).reshape(-1)
    right = (near_scaled if kind == "scaled" else is_offset)(found, base, number)
    if right.all():
        return ""
    at = int(np.argmin(right))
    count = f"{len(right) - int(right.sum())} of {len(right)} elements are not that, rounded"
    return f"{count}: element {at} is {float(found[at]):.6g}, {source} has {float(base[at]):.6g}"


def is_offset(found: Array, base: Array, amount: float) -> Array:
    """Say which of FOUND are BASE plus AMOUNT, rounded once to either dtype, or the way back is.

    >>> base = np.array([0.3, 0.3], np.float16)
    >>> is_offset(np.array([1.3, 1.31], np.float16), base, 1.0).tolist()
    [True, False]
    """
    own, theirs = CODE[found.dtype], CODE[base.dtype]
    first = cast(base, own).astype(np.float64) + amount
    exact = base.astype(np.float64) + amount
    back = cast(found.astype(np.float64) - amount, theirs)
    ways = [cast(exact, own), cast(first, own), cast(cast(exact, theirs), own)]
    near = np.logical_or.reduce([found == way for way in ways]) | (back == base)
    if amount == round(amount):
        return np.asarray(near)
    return np.asarray(near | (_gap(found, exact) <= 2 * _unit(found, base) * np.abs(exact)))


def near_scaled(found: Array, base: Array, factor: float) -> Array:
    """Say which of FOUND are BASE times FACTOR, a fitted number, but for two roundings."""
    exact = base.astype(np.float64) * factor
    return np.asarray(_gap(found, exact) <= 3 * _unit(found, base) * np.abs(exact) + 1e-300)


def _gap(found: Array, exact: Array) -> Array:
    return np.abs(found.astype(np.float64) - exact)


def _unit(found: Array, base: Array) -> float:
    return max(roundoff(CODE[found.dtype]), roundoff(CODE[base.dtype]), 2.0**-53)


def _affine_fit(tensor: CandidateTensor, name: str) -> tuple[float, str, float, str]:
    other = tensor.index.sketches[name]
    limit = CLOSE * unit(tensor.array, other)
    plain = tensor.gap(other)
    if plain <= limit:
        return plain, "close", 0.0, name
    own, theirs = tensor.sketch.projections, other.projections
    factor = float(own @ theirs / max(float(theirs @ theirs), 1e-300))
    scaled = tensor.gap(other, factor=factor)
    return min((scaled, "scaled", factor, name), _offset_fit(tensor, name, limit))


def _offset_fit(tensor: CandidateTensor, name: str, limit: float) -> tuple[float, str, float, str]:
    other = tensor.index.sketches[name]
    offset = tensor.sketch.moments.mean - other.moments.mean
    ones = _projections_of_ones(squeeze(tensor.array.shape))
    # An offset of 1 takes as many digits from the smaller side as it is smaller.
    lost = min(1.0, tensor.sketch.norm / max(other.norm, 1e-300))
    whole = float(round(offset))  # rounding in 16 bits moves the mean too
    gaps = {it: lost * tensor.gap(other, shift=it * ones) for it in (whole, offset) if it}
    best = whole if gaps.get(whole, math.inf) <= limit else offset
    return gaps.get(best, math.inf), "offset", best, name


@lru_cache(maxsize=8)
def _projections_of_ones(shape: tuple[int, ...]) -> Array:
    return projections(np.ones(shape, np.float32))


def _rows_scaled(tensor: CandidateTensor) -> Explanation | None:
    """Rows multiplied by factors of their own, where the route is known to change values."""
    if not (tensor.permitted and tensor.by_name and tensor.index.arrays and tensor.peers):
        return None
    base = tensor.index.arrays(tensor.by_name).astype(np.float64).reshape(len(tensor.array), -1)
    found = tensor.array.astype(np.float64).reshape(base.shape)
    factors = (found * base).sum(axis=1) / np.maximum((base * base).sum(axis=1), 1e-300)
    left = float(np.linalg.norm(found - factors[:, None] * base))
    gap = left / max(float(np.linalg.norm(found)), 1e-300)
    if gap > CLOSE * unit(tensor.array, tensor.index.sketches[tensor.by_name]):
        return None
    few = np.unique(np.round(factors, 4))
    if len(few) > len(factors) // 2:
        return None
    shown = ", ".join(f"{factor:.4g}" for factor in few[:6])
    detail = f"rows of {tensor.by_name} times {shown}{' ...' if len(few) > 6 else ''}"
    return tensor.explanation(tensor.by_name, "scaled", detail, ok=True)


def _cropped(tensor: CandidateTensor) -> Explanation | None:
    length = squeeze(tensor.array.shape)[1:] or squeeze(tensor.array.shape)
    for name, other in tensor.index.sketches.items():
        if len(other.squeezed) != len(length) + 1 or other.squeezed[1:] != length:
            continue
        if math.prod(other.shape) <= tensor.array.size:
            continue
        starts = _windows(tensor.sketch, other, unit(tensor.array, other))
        starts = starts[[_is_window(tensor, name, int(start)) for start in starts]]
        if len(starts):
            count = len(tensor.sketch.rows)
            detail = f"rows {starts[0]}-{starts[0] + count - 1} of {len(other.rows)} of {name}"
            return tensor.explanation(name, "cropped", detail, ok=tensor.permitted)
    return None


def _windows(own: Sketch, other: Sketch, u: float) -> Array:
    count = len(own.rows)
    if not 0 < count < len(other.rows):
        return np.zeros(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(other.rows, count)
    limit = row_tolerance(own, u)
    first = np.flatnonzero(np.abs(windows[:, 0] - own.rows[0]) <= limit)
    return first[[bool(np.all(np.abs(windows[it] - own.rows) <= limit)) for it in first]]


def _is_window(tensor: CandidateTensor, name: str, start: int) -> bool:
    """Say whether TENSOR is the rows of reference NAME from START on, where these are at hand."""
    if tensor.index.arrays is None:
        return True
    base = tensor.index.arrays(name)
    rows = base.reshape(-1, math.prod(squeeze(base.shape)[1:]))[start:][: len(tensor.sketch.rows)]
    found = tensor.array.astype(np.float64).reshape(rows.shape)
    gap = float(np.linalg.norm(found - rows)) / max(float(np.linalg.norm(found)), 1e-300)
    return gap <= CLOSE * unit(tensor.array, tensor.index.sketches[name])


def _shuffled(tensor: CandidateTensor) -> Explanation | None:
    for name in sorted(tensor.peers, key=lambda name: name != tensor.by_name):
        other = tensor.index.sketches[name]
        if not _may_be(tensor, name):
            continue
        limit = row_tolerance(tensor.sketch, unit(tensor.array, other))
        order = match_rows(tensor.sketch.rows, other.rows, limit)
        words = "rows"
        if order is None or len(set(order.tolist())) < max(len(order), 2):
            order, words = _column_order(tensor, name, limit), "columns"
        stays = order is not None and np.array_equal(order, np.arange(len(order)))
        if order is not None and not stays and len(set(order.tolist())) == len(order):
            detail = f"{name}, {describe_order(order.tolist(), words)}"
            return tensor.explanation(name, "shuffled", detail, ok=tensor.permitted)
    return None


def _column_order(tensor: CandidateTensor, name: str, limit: float) -> Array | None:
    if tensor.index.arrays is None or tensor.array.ndim < 2:
        return None
    wanted, found = (
        row_sums(it.reshape(it.shape[0], -1).T) for it in (tensor.index.arrays(name), tensor.array)
    )
    return match_rows(found, wanted, limit * math.sqrt(len(tensor.sketch.rows)))


def _unexplained(tensor: CandidateTensor) -> Explanation:
    if tensor.by_name is None:
        return tensor.explanation(None, "unexplained", "the reference has no weights", ok=False)
    shaped = (explain(tensor, _altered) for explain in (part_of_stack, of_stack, in_other_order))
    if found := next(filter(None, shaped), None):
        return found
    if not tensor.peers:
        shape = list(tensor.index.sketches[tensor.by_name].shape)
        detail = f"no reference has this shape; nearest by name: {tensor.by_name} {shape}"
        return tensor.explanation(None, "unexplained", detail, ok=False)
    if tensor.array.size > 1 and is_constant(tensor.array):
        detail = f"all {tensor.array.flat[0]:g}, {tensor.by_name} is not"
        return tensor.explanation(tensor.by_name, "unexplained", detail, ok=False)
    details = [describe_differences(tensor, tensor.by_name)]
    if tensor.by_value is not None and tensor.by_value[0] != tensor.by_name:
        details.append(f"nearest by value: {tensor.by_value[0]}, off by {tensor.by_value[1]:.2g}")
    return tensor.explanation(tensor.by_name, "unexplained", "; ".join(details), ok=False)


TESTS: Final[tuple[Test, ...]] = (
    _not_finite,
    _zeroed,
    _merged,
    _rounded,
    _permuted,
    explain_folded,
    _affine,
    _rows_scaled,
    _cropped,
    flipped,
    _shuffled,
    _unexplained,
)
