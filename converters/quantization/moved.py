"""Dense tensors of a quantized model that are not the original's, and whether moved scales explain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ..checkpoints import Checkpoint
from ..dtypes import CODE, FLOATS, unit_roundoff
from ..values import Array
from .likeness import Pair, pair_of
from .scaling import Scaling, Vector, fit, gain, ratios
from .view import Dequantized

TINY: Final = 2.0**-25  # half the least float16
TRIED: Final = 12  # weights that a scale is looked for in, those of the same block first
CLOSE: Final = 0.3  # how far from 1 the gain of a scale that is there may lie
ROUNDING: Final = 2.0**-7  # relative: what a cast to bfloat16 leaves of a scaled matrix


def unexplained(quantized: Dequantized, original: Checkpoint, others: Sequence[str]) -> list[str]:
    """Say which dense tensors of QUANTIZED are not those of ORIGINAL.

    Left out is what a cast explains, a matrix whose rows or columns were scaled, and a vector that
    was divided by what one of the weights OTHERS was multiplied by.
    """
    dense = (name for name in quantized.headers if name not in quantized.schemes)
    return [
        f"{name}: not quantized, and differs by {_apart(*pair):.3g}"
        for name, pair in ((name, (quantized.read(name), original.read(name))) for name in dense)
        if not _is_cast(*pair)
        and not _is_scaled(*pair)
        and not any(_shows(*pair, it) for it in _candidates(quantized, original, others, name))
    ]


def _apart(stored: Array, original: Array) -> float:
    wide = original.astype(np.float64)
    size = float(np.linalg.norm(wide)) or 1.0
    return float(np.linalg.norm(stored.astype(np.float64) - wide)) / size


def _is_cast(stored: Array, original: Array) -> bool:
    """Whether STORED is ORIGINAL; in another dtype, whether it was cast, on the way to a third too."""
    if stored.dtype == original.dtype or CODE[stored.dtype] not in FLOATS:
        return original.astype(stored.dtype).tobytes() == stored.tobytes()
    found, wanted = stored.astype(np.float64), original.astype(np.float64)
    loose = 2 * unit_roundoff(stored.dtype.name) * np.abs(wanted) + TINY
    return bool(np.all((np.abs(found - wanted) <= loose) | (found == wanted)))


def _is_scaled(stored: Array, original: Array) -> bool:
    """Whether a matrix is the original with rows and columns scaled, such as a router before AWQ."""
    if stored.ndim != 2 or min(stored.shape) < 2:
        return False
    wide, base = stored.astype(np.float32), original.astype(np.float32)
    found = fit(lambda: iter([(slice(None), wide, base)]), wide.shape)
    return _apart(base * found.rows[:, None] * found.columns, wide) <= ROUNDING


def _candidates(
    quantized: Dequantized, original: Checkpoint, others: Sequence[str], name: str
) -> Iterator[Pair]:
    """Yield the weights that a scale of NAME could have gone to, the most likely first."""
    path = name.split(".")
    size = int(np.prod(quantized.headers[name].shape))
    shapes = {it: quantized.headers[it].shape for it in others}
    fitting = [it for it, shape in shapes.items() if size in (shape[-1], int(np.prod(shape[:-1])))]
    fitting.sort(key=lambda it: -_shared(path, it.split(".")))
    return (pair_of(quantized, original, it) for it in fitting[:TRIED])


def _shared(path: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(path, other, strict=False))
    return next((place for place, (one, two) in pairs if one != two), min(len(path), len(other)))


def _shows(stored: Array, original: Array, weight: Pair) -> bool:
    """Whether WEIGHT was multiplied by what STORED, a vector, was divided by, or as it was."""
    return any(
        abs(gain(blocks, factors) - 1) <= CLOSE
        for ratio in ratios(stored, original)
        for number, blocks in enumerate(weight.matrices())
        for factors in _factors(ratio, weight.original.shape, number)
    )


def _factors(ratio: Vector, shape: tuple[int, ...], number: int) -> Iterator[Scaling]:
    """Yield the factors that the matrix NUMBER of a weight of SHAPE would have been multiplied by."""
    *_, rows, columns = shape
    if len(ratio) == columns:
        yield Scaling(np.ones(rows), 1 / ratio)
    if len(ratio) == int(np.prod(shape[:-1])):
        yield Scaling(ratio[number * rows : (number + 1) * rows], np.ones(columns))
