"""A weight that a merge changes, read and stored block by block: memory is bounded by one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ...checkpoints import Checkpoint
from ...common.dtypes import NUMPY
from ...quantization import Blocks, Dequantized
from ...quantization.forms import WEIGHT, Float64, Form, Parts, own_form
from ...quantization.kept import moved_codes
from ...values import Array, LowRank

Index = tuple[Any, ...]  # integers, and a slice of rows at last
Change = LowRank | Array | None
BLOCK: Final = 1 << 18  # elements worked on at a time, in a handful of float64 temporaries


class Reader(Protocol):
    """The values of a weight before the merge."""

    def before(self, index: Index) -> Float64:
        """Return the values at INDEX."""
        ...

    def stored(self, index: Index) -> Parts | None:
        """Return what stores the values at INDEX in the base; ``None`` if they are from elsewhere."""
        ...


class Base:
    """A weight of the base that is merged into."""

    def __init__(self, tensors: Dequantized, name: str) -> None:
        quantized = name in tensors.schemes
        self.form = own_form(tensors, name)
        self.parts = tensors.parts(name) if quantized else {WEIGHT: tensors.raw.read(name)}

    def stored(self, index: Index) -> Parts:
        """Return the parts of the rows at INDEX, as they are."""
        return {part: array[index[: array.ndim]] for part, array in self.parts.items()}

    def before(self, index: Index) -> Float64:
        """Return the canonical values at INDEX."""
        return self.form.decode(self.stored(index))

    def nearest(self, index: Index, wanted: Float64) -> Parts:
        """Return the parts at INDEX, their codes those that are nearest to WANTED."""
        assert self.form.scheme  # noqa: S101  (codes were asked for)
        return dict(moved_codes(Blocks(self.stored(index), self.form.scheme), wanted).parts)


class Other:
    """A weight of another checkpoint under the same names: the one that the base was made from."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.array = checkpoint.read(name)

    def stored(self, _: Index) -> None:
        """Return nothing: the base stores other numbers."""
        return

    def before(self, index: Index) -> Float64:
        """Return the values at INDEX."""
        return self.array[index].astype(np.float64)


@dataclass(frozen=True, eq=False)
class AffectedWeight:
    """A weight and what is merged into it.

    Attributes:
        name: in the base.
        shape: of the dense weight.
        own: the form that the base has it in.
        change: an update, a tensor that takes the weight's place, or ``None`` for neither.
        tensors: the base.
        source: the checkpoint merged into, where that is another one.
        trained_rounded: whether the change was trained on the grid of the base: what is to be stored is
            then the sum at its nearest values, and no other number.
    """

    name: str
    shape: tuple[int, ...]
    own: Form
    change: Change
    tensors: Dequantized
    source: Checkpoint | None = None
    trained_rounded: bool = False

    def reader(self) -> Reader:
        """Return what reads the weight as it is before the merge."""
        return Other(self.source, self.name) if self.source else Base(self.tensors, self.name)

    def wanted(self, index: Index, before: Float64) -> Float64:
        """Return the values at INDEX after the merge, before they are rounded."""
        return with_change(self.change, index, before)

    def encoded(self, form: Form, every: int = 1) -> Iterator[Block]:
        """Yield the weight after the merge in FORM, block by block, or EVERY so many blocks one.

        Rows that nothing changes stay as they are where their form does: rounding them once more
        would move them, for MLX's affine rounding is not idempotent.
        """
        reader = self.reader()
        grid = Base(self.tensors, self.name) if self.trained_rounded else None
        for index in islice(blocks(self.shape, whole=form.global_scale), None, None, every):
            before = reader.before(index)
            wanted = self.wanted(index, before)
            if grid:
                wanted = self.own.decode(nearest := grid.nearest(index, wanted))
            if grid and form == self.own:
                yield Block(index, before, wanted, nearest)
                continue
            parts = form.encode(wanted)
            stored = reader.stored(index) if form == self.own else None
            if stored is not None:
                keep_same(parts, stored, wanted == before)
            yield Block(index, before, wanted, parts)

    def made(self, form: Form, note: Callable[[Block], None]) -> dict[str, Array]:
        """Return the tensors that store the weight after the merge in FORM; NOTE sees every block."""
        layout = form.layout(self.name, self.shape)
        empty = {name: np.empty(head.shape, NUMPY[head.dtype]) for name, head in layout.items()}
        for block in self.encoded(form):
            note(block)
            for part, array in block.parts.items():
                whole = empty[stored_name(self.name, part)]
                whole[block.place[: whole.ndim]] = array
        return empty


class Block(NamedTuple):
    """Some rows of a weight.

    Attributes:
        place: which.
        before: their values before the merge.
        wanted: after it, in float64.
        parts: after it, as stored.
    """

    place: Index
    before: Float64
    wanted: Float64
    parts: Parts


def with_change(change: Change, place: Index, before: Float64) -> Float64:
    """Return the rows at PLACE of a weight, which are BEFORE, with its CHANGE, in float64."""
    if not isinstance(change, LowRank):
        return before if change is None else change[place].astype(np.float64)
    update = change.part(place[:-1]) if place[:-1] else change
    return update.rows(place[-1]).applied_to(before)


def keep_same(parts: Parts, stored: Parts, same: Array) -> None:
    """Put back into PARTS the numbers that are the SAME as STORED: of codes, rows that are all so."""
    if len(parts) > 1:
        axes = None if "global_scale" in parts else -1
        same = np.asarray(same.all(axis=axes, keepdims=axes is not None))
    for part, array in parts.items():
        parts[part] = np.where(same, stored[part], array)


def blocks(shape: tuple[int, ...], *, whole: bool = False) -> Iterator[Index]:
    """Yield indices that cover SHAPE, a few rows of one matrix at a time, or WHOLE matrices.

    >>> list(blocks((2, 3, 4)))
    [(0, slice(0, 3, None)), (1, slice(0, 3, None))]
    """
    if len(shape) < 2:
        yield (slice(None),) if shape else ()
        return
    *lead, rows, columns = shape
    count = rows if whole else min(rows, max(1, BLOCK // max(1, columns)))
    for first in np.ndindex(*lead):
        for start in range(0, rows, count):
            yield (*first, slice(start, min(start + count, rows)))


def stored_name(name: str, part: str) -> str:
    """Return the name of a PART of the weight NAME.

    >>> stored_name("up.weight", "scales"), stored_name("norm.gamma", "weight")
    ('up.scales', 'norm.gamma')
    """
    return name if part == WEIGHT else f"{name.removesuffix(WEIGHT)}{part}"
