"""Recognise a tensor without its values: hashes, moments and random projections.

A sketch is what a golden keeps of a weight. Hashes say *equal* and *cast*. Projections are linear, so
they say *scaled*, *offset* and *base + update*, and estimate a distance (Johnson and Lindenstrauss
1984). One projection per row says which rows moved, were zeroed or cut off. A vector has one row, so it
is kept whole where it is short.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ....converters.checkpoints.base import Header
from ....converters.common.dtypes import CODE
from ....converters.values import Array
from .casts import CLAMPED, casts

PROJECTIONS: Final = 16
SEED: Final = 20240229
LONGEST_ROW: Final = 1 << 16  # elements; the sign matrix of a longer row would not fit a cache
MOST_ROWS: Final = 1 << 18  # row projections kept; more would weigh as much as small tensors
BLOCK: Final = 1 << 18  # elements turned into float64 at a time


class Weights(Protocol):
    """Named tensors, read one at a time; every Checkpoint is one."""

    @property
    def headers(self) -> Mapping[str, Header]:
        """Dtype and shape by name."""
        ...

    def read(self, name: str) -> Array:
        """Return tensor NAME."""
        ...


class ArrayWeights:
    """Weights that are already in memory, such as the constants of an ML program.

    >>> ArrayWeights({"w": np.zeros((2, 3), np.float32)}).headers["w"].shape
    (2, 3)
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self.headers: Mapping[str, Header] = {
            name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()
        }

    def read(self, name: str) -> Array:
        """Return tensor NAME."""
        return self._arrays[name]


class Moments(NamedTuple):
    """What no reordering of a tensor changes.

    Attributes:
        mean: of the finite elements.
        rms: root of the mean square of the finite elements.
        least: smallest element.
        largest: largest element.
        not_finite: how many elements are infinite or NaN.
    """

    mean: float
    rms: float
    least: float
    largest: float
    not_finite: int


class Sketch(NamedTuple):
    """What is kept of a tensor.

    Attributes:
        dtype: safetensors code.
        shape: its shape.
        hashes: xxh3 of the little-endian bytes at its own dtype and, for floats, at every common
            one, by code; see :func:`weighbridge.parity.weights.sketches.casts.casts`.
        moments: order-free figures.
        projections: 16 random signed sums, float64; their mean square estimates the sum of squares.
        rows: one signed sum per row (:func:`row_shape`), empty where there are too many.
        vector: the bytes of a vector that is no longer than a row may be; else empty.
    """

    dtype: str
    shape: tuple[int, ...]
    hashes: Mapping[str, str]
    moments: Moments
    projections: Array
    rows: Array
    vector: bytes = b""

    @property
    def squeezed(self) -> tuple[int, ...]:
        """The shape without axes of size 1."""
        return squeeze(self.shape)

    def hashes_at(self, code: str) -> tuple[str, ...]:
        """Return the hashes that the tensor has at dtype CODE; float16 is rounded in two ways."""
        same = (code, CLAMPED) if code == "F16" else (code,)
        return tuple(self.hashes[name] for name in same if name in self.hashes)

    @property
    def norm(self) -> float:
        """The Euclidean norm of the finite elements."""
        return self.moments.rms * math.sqrt(math.prod(self.shape))


def squeeze(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return SHAPE without axes of size 1.

    >>> squeeze((1, 16, 384))
    (16, 384)
    """
    return tuple(size for size in shape if size != 1)


def row_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how a tensor is cut into rows: along its first axis, further where rows are too long.

    >>> row_shape((1, 16, 384)), row_shape((384,)), row_shape((128, 2048, 768))
    ((16, 384), (1, 384), (262144, 768))
    """
    sizes = squeeze(shape)
    first = 1 if len(sizes) > 1 else 0
    while math.prod(sizes[first:]) > LONGEST_ROW:
        first += 1
    return math.prod(sizes[:first]), math.prod(sizes[first:])


def _signs(bits: np.random.PCG64, count: int) -> Array:
    # The raw stream of a bit generator is fixed by NEP 19, drawn distributions are not.
    words = bits.random_raw(-(-count * PROJECTIONS // 64)).astype("<u8")
    ones = np.unpackbits(words.view(np.uint8), count=count * PROJECTIONS)
    return (ones.astype(np.float64) * 2 - 1).reshape(count, PROJECTIONS)


def signs(stream: int, count: int) -> Array:
    """Return COUNT rows of 16 random signs, float64, the same wherever and whenever they are asked for.

    >>> bool((signs(1, 3) == signs(1, 5)[:3]).all()), signs(1, 3).shape
    (True, (3, 16))
    """
    return _signs(np.random.PCG64(SEED + stream), count)


@lru_cache(maxsize=8)
def _column_signs(length: int) -> Array:
    return _signs(np.random.PCG64(SEED), length)


def sketch(array: Array) -> Sketch:
    """Return the sketch of ARRAY: one pass for figures, one per dtype for hashes.

    >>> sketch(np.ones((2, 3), np.float32)).moments
    Moments(mean=1.0, rms=1.0, least=1.0, largest=1.0, not_finite=0)
    """
    short = len(squeeze(array.shape)) == 1 and array.size <= LONGEST_ROW
    return figures(array)._replace(hashes=casts(array), vector=array.tobytes() if short else b"")


def figures(array: Array) -> Sketch:
    """Return the sketch of ARRAY without its hashes, which take a pass for each dtype.

    >>> figures(np.ones((2, 3), np.float32)).hashes
    {}
    """
    array = np.ascontiguousarray(array)
    moments, projections, rows = _figures(array)
    return Sketch(CODE[array.dtype], array.shape, {}, moments, projections, rows)


def row_sums(array: Array) -> Array:
    """Return the signed sum of each row of ARRAY, as its sketch has it.

    >>> bool((row_sums(np.eye(3)) == sketch(np.eye(3)).rows).all())
    True
    """
    return _figures(np.ascontiguousarray(array))[2]


def projections(array: Array) -> Array:
    """Return the random signed sums of ARRAY, as its sketch has them.

    >>> projections(np.eye(3)).shape
    (16,)
    """
    return _figures(np.ascontiguousarray(array))[1]


def _figures(array: Array) -> tuple[Moments, Array, Array]:
    count, length = row_shape(array.shape)
    table = array.reshape(count, length)
    column_signs, bits = _column_signs(length), np.random.PCG64(SEED + 1)
    projections = np.zeros(PROJECTIONS)
    rows, sums = [], _Sums()
    step = max(4, BLOCK // max(length, 1) // 4 * 4)  # whole words of the bit stream
    for start in range(0, count, step):
        block = sums.add(table[start : start + step].astype(np.float64))
        signed = block @ column_signs
        projections += np.sum(signed * _signs(bits, len(block)), axis=0)
        rows.append(signed[:, 0])
    kept = np.concatenate(rows) if rows and count <= MOST_ROWS else np.zeros(0)
    return sums.moments(array.size), projections, kept


class _Sums:
    """Running sums over blocks."""

    def __init__(self) -> None:
        self.total = self.squares = 0.0
        self.least, self.largest = math.inf, -math.inf
        self.not_finite = 0

    def add(self, block: Array) -> Array:
        """Add BLOCK and return it with zeros for what is not finite."""
        if block.size == 0:
            return block
        with np.errstate(invalid="ignore"):  # infinities of both signs
            finite = math.isfinite(float(block.sum()))
        if not finite:
            wrong = ~np.isfinite(block)
            self.not_finite += int(wrong.sum())
            block = np.where(wrong, 0.0, block)
        flat = block.reshape(-1)
        self.total += float(flat.sum())
        self.squares += float(flat @ flat)
        self.least = min(self.least, float(flat.min()))
        self.largest = max(self.largest, float(flat.max()))
        return block

    def moments(self, size: int) -> Moments:
        """Return the moments of SIZE elements."""
        if size == 0:
            return Moments(0.0, 0.0, 0.0, 0.0, 0)
        rms = math.sqrt(self.squares / size)
        return Moments(self.total / size, rms, self.least, self.largest, self.not_finite)


def sketches(weights: Weights) -> dict[str, Sketch]:
    """Return the sketch of every tensor of WEIGHTS, read one at a time."""
    return {name: sketch(weights.read(name)) for name in weights.headers}


def to_record(it: Sketch) -> dict[str, Any]:
    """Return a sketch as JSON values; :func:`from_record` is the inverse.

    >>> record = to_record(sketch(np.ones((2, 3), np.float32)))
    >>> from_record(record).hashes == sketch(np.ones((2, 3), np.float32)).hashes
    True
    """
    return {
        "dtype": it.dtype,
        "shape": list(it.shape),
        "hashes": dict(it.hashes),
        "moments": list(it.moments),
        "projections": it.projections.tolist(),
        "rows": base64.b64encode(it.rows.astype("<f8").tobytes()).decode(),
        "vector": base64.b64encode(it.vector).decode(),
    }


def from_record(record: Mapping[str, Any]) -> Sketch:
    """Return the sketch that :func:`to_record` wrote."""
    return Sketch(
        record["dtype"],
        tuple(record["shape"]),
        dict(record["hashes"]),
        Moments(*record["moments"]),
        np.array(record["projections"], np.float64),
        np.frombuffer(base64.b64decode(record["rows"]), "<f8"),
        base64.b64decode(record.get("vector", "")),
    )
