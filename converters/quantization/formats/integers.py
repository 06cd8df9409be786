"""Integer zero points: ``scale * (code - zero)`` is MLX's ``scale * code + bias``, and the other way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ....errors import UnsupportedError
from ...checkpoints import Header
from ...checkpoints.assembled import Rows, Source, computed, count_rows, read_rows
from ...checkpoints.workers import Workers
from ...common.dtypes import NUMPY
from ...values import Array
from ..mlx import SUFFIX, each_block
from ..packing import pack, unpack
from ..rounding import is_multiple
from ..scheme import OFFERED, Scheme
from ..view import Dequantized
from ..workspace import Room

Grid = Callable[[slice], Array]  # rows of a weight -> what its groups have, (rows, groups)

WIDTHS, SIZES = OFFERED["affine"]
WIDE: Final = "F32"
ROUNDED: Final = 1e-3  # steps: what is less may be the rounding of a quotient


class Integers(NamedTuple):
    """A weight of integer codes, read from any format.

    Attributes:
        shape: of the weight, rows by columns.
        bits: of a code.
        group: columns that share a scale and a zero point.
        codes: rows of codes, uint8.
        scales: of rows, in the dtype SCALED.
        zeros: of rows, as whole numbers; ``None`` where all are the middle of the codes.
        scaled: the dtype of the scales.
        words: the codes as MLX packs them, where they are stored so.
        biased: a dtype that holds the biases, where that is known; else float32, unless SCALED does.
    """

    shape: tuple[int, int]
    bits: int
    group: int
    codes: Rows
    scales: Grid
    zeros: Grid | None
    scaled: str
    words: Source | None = None
    biased: str | None = None

    @property
    def scheme(self) -> Scheme | None:
        """The scheme of MLX that holds this exactly; a larger group is several with one scale."""
        size = (
            self.group
            if self.group in SIZES
            else max((it for it in SIZES if self.group % it == 0), default=None)
        )
        return Scheme(self.bits, size) if size and self.bits in WIDTHS else None


def as_parts(path: str, weight: Integers) -> tuple[dict[str, Source], Scheme | None]:
    """Return the sources of WEIGHT, of the module PATH, as MLX's parts; dense without a scheme."""
    scheme = weight.scheme
    if scheme is None:
        return {path + SUFFIX: computed(Header(WIDE, weight.shape), _dense(weight))}, None
    rows, columns = weight.shape
    words = Header("U32", (rows, columns * weight.bits // 32))
    grid = (rows, columns // scheme.group_size)
    repeated = weight.group // scheme.group_size
    biased = weight.biased or (weight.scaled if weight.zeros is None else WIDE)
    sources = {
        path + SUFFIX: weight.words or computed(words, _packed(weight)),
        f"{path}.scales": computed(
            Header(weight.scaled, grid), _repeated(weight.scales, grid[1], repeated)
        ),
        f"{path}.biases": computed(
            Header(biased, grid), _repeated(_biases(path, weight, biased), grid[1], repeated)
        ),
    }
    return sources, scheme


def _packed(weight: Integers) -> Rows:
    return lambda rows: (pack(codes, weight.bits) for codes in weight.codes(rows))


def _repeated(grid: Grid, columns: int, times: int) -> Rows:
    """Return rows of GRID, each number TIMES times, COLUMNS in all."""

    def rows_of(rows: slice) -> Iterator[Array]:
        for block in each_block(rows, columns):
            found = grid(block)
            yield found if times == 1 else np.repeat(found, times, axis=-1)

    return rows_of


def _biases(path: str, weight: Integers, dtype: str) -> Grid:
    def grid(rows: slice) -> Array:
        scales = weight.scales(rows).astype(np.float64)
        zeros = 1 << (weight.bits - 1) if weight.zeros is None else weight.zeros(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            biases: Array = (scales * -np.asarray(zeros, np.float64)).astype(NUMPY[dtype])
        if not np.array_equal(np.isfinite(scales), np.isfinite(biases)):
            raise UnsupportedError(f"{path}.biases would be beyond {NUMPY[dtype]}")
        return biases

    return grid


def _dense(weight: Integers) -> Rows:
    """Return rows of the values of WEIGHT, rounded to float32 once."""

    def rows_of(rows: slice) -> Iterator[Array]:
        at = rows.start
        for codes in weight.codes(rows):
            block = slice(at, at + len(codes))
            scales = weight.scales(block).astype(np.float64)
            zeros = 1 << (weight.bits - 1) if weight.zeros is None else weight.zeros(block)
            grouped = codes.reshape(*scales.shape, weight.group).astype(np.float64)
            grouped -= np.broadcast_to(zeros, scales.shape)[..., None]
            grouped *= scales[..., None]
            yield grouped.reshape(codes.shape).astype(np.float32)
            at = block.stop

    return rows_of


def unpacked(words: Array, bits: int, count: int) -> Array:
    """Return COUNT codes of each row of WORDS, whose last word may be filled up."""
    missing = -words.shape[-1] % bits if 32 % bits else 0
    whole = np.pad(words, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(words)
    codes: Array = unpack(whole.view(np.uint32), bits)[:, :count]
    return codes


class Fit(NamedTuple):
    """How integer zero points fit the biases of a weight.

    Attributes:
        loss: the largest difference of a value, in steps.
        symmetric: whether all zero points are the middle of the codes, and exact.
        lowest: no zero point is lower, whichever sign of the scales is turned.
        narrow: whether float16 holds all scales.
    """

    loss: float = 0.0
    symmetric: bool = True
    lowest: int = 255
    narrow: bool = True

    def joined(self, other: Fit) -> Fit:
        """Return the fit of both together."""
        return Fit(
            max(self.loss, other.loss),
            self.symmetric and other.symmetric,
            min(self.lowest, other.lowest),
            self.narrow and other.narrow,
        )


def zeros_of(scales: Array, biases: Array, bits: int) -> Array:
    """Return the zero points that are nearest to SCALES and BIASES, uint8, within the codes.

    >>> zeros_of(np.float32([[0.5, -0.5]]), np.float32([[-4, 3.9]]), 4).tolist()
    [[8, 8]]
    """
    return np.asarray(_nearest(*_wide(scales, biases), bits), np.uint8)


def _wide(scales: Array, biases: Array) -> tuple[Array, Array]:
    kind: Any = np.float32 if scales.dtype.itemsize == biases.dtype.itemsize == 2 else np.float64
    return scales.astype(kind), biases.astype(kind)


def _nearest(scales: Array, biases: Array, bits: int) -> Array:
    with np.errstate(all="ignore"):
        zeros = np.divide(biases, scales)
    np.negative(zeros, out=zeros)
    np.rint(zeros, out=zeros)
    np.clip(zeros, 0, (1 << bits) - 1, out=zeros)
    if np.isnan(zeros.max(initial=0)):  # a scale of 0
        zeros[np.isnan(zeros)] = 0
    return zeros


def fit_of(parts: Dequantized, name: str) -> Fit:
    """Return how integer zero points fit the weight NAME of PARTS, which is affine."""
    bits = parts.schemes[name].bits
    header = parts.raw.headers[parts.part_names(name)["scales"]]
    found, room = Fit(), Room()
    for rows in each_block(slice(0, count_rows(header)), header.shape[-1]):
        found = found.joined(_fit(*grids_of(parts, name, rows, room), bits))
    return found


def _fit(scales: Array, biases: Array, bits: int) -> Fit:
    """Return the fit of some rows, in as few looks at them as it takes."""
    largest, middle = (1 << bits) - 1, 1 << (bits - 1)
    if scales.dtype == biases.dtype and is_multiple(biases, scales, bits - 1):
        return Fit(0.0, True, largest - middle, _fits_half(scales))
    wide, biased = _wide(scales, biases)
    with np.errstate(all="ignore"):
        if np.array_equal(wide * wide.dtype.type(-middle), biased) and wide.all():
            return Fit(0.0, True, largest - middle, _fits_half(scales))
        apart = np.divide(biased, wide)
    whole = np.rint(apart)
    low, high = -whole.max(initial=-math.inf), -whole.min(initial=math.inf)  # of the zero points
    apart -= whole
    worst = max(apart.max(initial=0), -apart.min(initial=0))
    if not (low >= 0 and high <= largest and worst > ROUNDED):
        return _exact_fit(wide, biased, bits)._replace(narrow=_fits_half(scales))
    place = np.abs(apart).argmax()
    loss = _steps(*(it.reshape(-1)[place, None] for it in (wide, biased, -whole)))
    return Fit(loss, False, int(min(low, largest - high)), _fits_half(scales))


def _exact_fit(scales: Array, biases: Array, bits: int) -> Fit:
    zeros = _nearest(scales, biases, bits)
    loss = _steps(scales, biases, zeros)
    low, high = zeros.min(initial=math.inf), zeros.max(initial=0)
    symmetric = loss == 0 and low == high == 1 << (bits - 1)
    return Fit(loss, symmetric, int(min(low, (1 << bits) - 1 - high, 255)))


def _steps(scales: Array, biases: Array, zeros: Array) -> float:
    """Return the largest difference of a value, in scales: zero points are 0 where scales are."""
    off = zeros * scales
    off += biases
    if not off.any():
        return 0.0
    with np.errstate(all="ignore"):
        steps = np.abs(off) / np.abs(scales)
    return float(np.nan_to_num(np.where(off == 0, 0, steps), nan=math.inf).max(initial=0))


def _fits_half(scales: Array) -> bool:
    if scales.dtype == np.float16:
        return True
    with np.errstate(over="ignore"):
        half = scales.astype(np.float16)
    return bool(np.array_equal(half.astype(np.float64), scales.astype(np.float64)))


def grids_of(
    parts: Dequantized, name: str, rows: slice, room: Room | None = None
) -> tuple[Array, Array]:
    """Return the scales and biases of ROWS of the affine weight NAME of PARTS; in ROOM if there is one."""
    names, room = parts.part_names(name), room or Room()
    scales, biases = (
        read_rows(parts.raw, names[part], rows, room.place(part)) for part in ("scales", "biases")
    )
    return scales, biases


def fits_of(parts: Dequantized, names: Iterable[str]) -> Mapping[str, Fit]:
    """Return how integer zero points fit the affine weights NAMES of PARTS; several at a time."""
    found: dict[str, Fit] = {}
    wanted = list(names)
    Workers().each(wanted, lambda name: found.update({name: fit_of(parts, name)}))
    return {name: found[name] for name in wanted}
