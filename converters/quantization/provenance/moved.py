"""Dense tensors of a quantized model that are not the original's, and whether moved scales explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...checkpoints import Checkpoint
from ...common.dtypes import CODE, FLOATS, NUMPY, unit_roundoff
from ...values import Array
from ..view import Dequantized
from .cancelled import TRIED, Scaled, Side, scaled, shared, uncancelled, vector
from .likeness import Pair, pair_of
from .scaling import Fit, Scaling, Vector, fit, gain, ratios

TINY: Final = 2.0**-25  # half the least float16
CLOSE: Final = 0.3  # how far from 1 the gain of a scale that is there may lie
SURE: Final = CLOSE / 3  # standard error of a gain that says anything
ROUNDING: Final = 2.0**-7  # relative: what a cast to bfloat16 leaves of a scaled matrix
KEPT: Final = ("F32", "F16", "BF16")  # dtypes that a model is cast to on its way


@dataclass
class Dense:
    """The dense tensors that are no casts of the original's.

    Attributes:
        vectors: what the columns after each must have been multiplied by, one for each way to see it.
        matrices: those that are the original's with rows and columns scaled.
        unexplained: the others, and by how much they differ.
    """

    vectors: dict[str, list[Side]] = field(default_factory=dict)
    matrices: dict[str, Scaled] = field(default_factory=dict)
    unexplained: dict[str, str] = field(default_factory=dict)


def compared(quantized: Dequantized, original: Checkpoint, others: Sequence[str]) -> Dense:
    """Hold the dense tensors of QUANTIZED against those of ORIGINAL.

    A vector may have been divided by what one of the weights OTHERS was multiplied by.
    """
    found = Dense()
    for name in (it for it in quantized.headers if it not in quantized.schemes):
        stored, base = quantized.read(name), original.read(name)
        if _is_cast(stored, base):
            continue
        if (fitted := _scales(stored, base)) is not None:
            found.matrices[name] = scaled([fitted], ROUNDING)
        elif any(_shows(stored, base, it) for it in _candidates(quantized, original, others, name)):
            found.vectors[name] = [vector(it, ROUNDING) for it in ratios(stored, base)]
        else:
            found.unexplained[name] = f"differs by {_apart(stored, base):.3g}"
    return found


def alone(found: Dense, weights: Mapping[str, Scaled], moved: Sequence[str]) -> set[str]:
    """Return those of MOVED, and of the dense matrices, that were scaled and nothing cancels it.

    WEIGHTS are the scales of all weights that may be partners, MOVED among them.
    """
    everything = {**weights, **found.matrices}
    return uncancelled([*moved, *found.matrices], everything, found.vectors)


def _apart(stored: Array, original: Array) -> float:
    wide = original.astype(np.float64)
    size = float(np.linalg.norm(wide)) or 1.0
    return float(np.linalg.norm(stored.astype(np.float64) - wide)) / size


def _is_cast(stored: Array, original: Array) -> bool:
    """Whether STORED is ORIGINAL, cast or not, by way of a third dtype too."""
    if original.astype(stored.dtype).tobytes() == stored.tobytes():
        return True
    if CODE[stored.dtype] not in FLOATS or CODE[original.dtype] not in FLOATS:
        return False
    if any(_by_way_of(original, code, stored.dtype) == stored.tobytes() for code in KEPT):
        return True
    if stored.dtype == original.dtype:
        return False
    found, wanted = stored.astype(np.float64), original.astype(np.float64)
    loose = 2 * unit_roundoff(stored.dtype.name) * np.abs(wanted) + TINY
    return bool(np.all((np.abs(found - wanted) <= loose) | (found == wanted)))


def _by_way_of(original: Array, code: str, dtype: np.dtype[np.generic]) -> bytes:
    with np.errstate(over="ignore"):  # too large for float16: then it was another way
        return original.astype(NUMPY[code]).astype(dtype).tobytes()


def _scales(stored: Array, original: Array) -> Fit | None:
    """Return the scales of a matrix that is the original with rows and columns scaled, as a router."""
    if stored.ndim != 2 or min(stored.shape) < 2:
        return None
    wide, base = stored.astype(np.float32), original.astype(np.float32)
    found = fit(lambda: iter([(slice(None), wide, base)]), wide.shape)
    near = _apart(base * found.rows[:, None] * found.columns, wide) <= ROUNDING
    return found if near else None


def _candidates(
    quantized: Dequantized, original: Checkpoint, others: Sequence[str], name: str
) -> Iterator[Pair]:
    """Yield the weights that a scale of NAME could have gone to, the most likely first."""
    path = name.split(".")
    size = int(np.prod(quantized.headers[name].shape))
    shapes = {it: quantized.headers[it].shape for it in others}
    fitting = [it for it, shape in shapes.items() if size in (shape[-1], int(np.prod(shape[:-1])))]
    fitting.sort(key=lambda it: -shared(path, it.split(".")))
    return (pair_of(quantized, original, it) for it in fitting[:TRIED])


def _shows(stored: Array, original: Array, weight: Pair) -> bool:
    """Whether WEIGHT was multiplied by what STORED, a vector, was divided by, or as it was."""
    found = (
        gain(blocks, factors)
        for ratio in ratios(stored, original)
        for number, blocks in enumerate(weight.matrices())
        for factors in _factors(ratio, weight.original.shape, number)
    )
    # One in three of the gains of a weight that has nothing to do with it may be near 1 by chance.
    return any(abs(it.value - 1) <= CLOSE and it.error <= SURE for it in found)


def _factors(ratio: Vector, shape: tuple[int, ...], number: int) -> Iterator[Scaling]:
    """Yield the factors that the matrix NUMBER of a weight of SHAPE would have been multiplied by."""
    *_, rows, columns = shape
    if len(ratio) == columns:
        yield Scaling(np.ones(rows), 1 / ratio)
    if len(ratio) == int(np.prod(shape[:-1])):
        yield Scaling(ratio[number * rows : (number + 1) * rows], np.ones(columns))
