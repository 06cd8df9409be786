"""The normal form of a tensor: pieces of sources in a shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...notation.rules import Change
from .pieces import (
    MOST_PIECES,
    Box,
    Factor,
    Piece,
    Unfit,
    flatten,
    narrowed,
    spread,
    stepped,
    strides,
)


@dataclass(frozen=True)
class Form:
    """A tensor made of pieces.

    Attributes:
        shape: of the tensor.
        pieces: what its elements are.
        width: 0 where pieces count elements. Otherwise they count bytes, and an element has so many.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    width: int = 0

    @property
    def cells(self) -> tuple[int, ...]:
        """The shape in what the pieces count; the bytes of an element are a last axis."""
        return (*self.shape, self.width) if self.width else self.shape

    def boxes(self) -> list[Box]:
        """Return the pieces by the axes of the shape."""
        return [spread(piece, self.cells) for piece in self.pieces]

    def remade(self, shape: Sequence[int], boxes: Iterable[Box]) -> Form:
        """Return the form of SHAPE with these BOXES."""
        cells = (*shape, self.width) if self.width else tuple(shape)
        pieces = tuple(flatten(box, cells) for box in boxes)
        if len(pieces) > MOST_PIECES:
            raise Unfit(f"it is made of more than {MOST_PIECES} pieces")
        return Form(tuple(shape), pieces, self.width)

    def reshaped(self, shape: Sequence[int]) -> Form:
        """Return the form with its elements in another shape."""
        return replace(self, shape=tuple(shape))

    def transposed(self, order: Sequence[int]) -> Form:
        """Return the form with its axes in another ORDER."""
        to = {axis: at for at, axis in enumerate(order)}
        rank = len(self.shape)
        boxes = [
            box._replace(
                at=(*(box.at[axis] for axis in order), *box.at[rank:]),
                sides=tuple(side._replace(axis=to.get(side.axis, rank)) for side in box.sides),
            )
            for box in self.boxes()
        ]
        return self.remade([self.shape[axis] for axis in order], boxes)

    def sliced(self, axis: int, start: int, stop: int, step: int = 1) -> Form:
        """Return the indices START, START + STEP ... below STOP of AXIS.

        Raises:
            Unfit: they are no boxes, or the slice runs backwards.
        """
        if (start, stop, step) == (0, self.shape[axis], 1):
            return self
        if step < 1 or start >= stop:
            raise Unfit("a slice runs backwards or is empty")
        boxes = [part for box in self.boxes() for part in narrowed(box, axis, start, stop)]
        if step > 1:
            found = (stepped(box, axis, step) for box in boxes)
            boxes = [box for box in found if box is not None]
        size = -(-(stop - start) // step)
        return self.remade((*self.shape[:axis], size, *self.shape[axis + 1 :]), boxes)

    def viewed(self, shape: Sequence[int], old: int, new: int) -> Form:
        """Return the form with its bytes taken for elements of NEW bytes, not of OLD.

        Raises:
            Unfit: values were changed before.
        """
        if any(piece.changes for piece in self.pieces):
            raise Unfit("values change before their bits are read as another dtype")
        inner = self if self.width else self.in_bytes(old)
        return Form(tuple(shape), inner.pieces, new)

    def in_bytes(self, width: int) -> Form:
        """Return the form counted in bytes, WIDTH of them an element.

        Raises:
            Unfit: values are changed, which bytes cannot follow.
        """
        if any(piece.changes for piece in self.pieces):
            raise Unfit("values change in a rule that counts bytes")
        pieces = tuple(bytewise(piece, width) for piece in self.pieces)
        return Form(self.shape, pieces, width)

    def changed(self, change: Change) -> Form:
        """Return the form with a CHANGE of value.

        Raises:
            Unfit: the form counts bytes.
        """
        if self.width:
            raise Unfit("values change after their bits were read as another dtype")
        pieces = (piece._replace(changes=(*piece.changes, change)) for piece in self.pieces)
        return replace(self, pieces=tuple(pieces))


def bytewise(piece: Piece, width: int) -> Piece:
    """Return PIECE counted in bytes, WIDTH of them an element."""
    factors = tuple(Factor(s, here * width, there * width) for s, here, there in piece.factors)
    inner = (Factor(width, 1, 1),) if width > 1 else ()
    return piece._replace(
        start=piece.start * width, at=piece.at * width, factors=(*factors, *inner)
    )


def whole(name: str, shape: Sequence[int]) -> Form:
    """Return the form of a source as it is.

    >>> whole("w", (3, 2)).transposed((1, 0)).pieces[0].factors
    (Factor(size=3, here=2, there=1), Factor(size=2, here=1, there=3))
    """
    sizes = zip(shape, strides(shape), strict=True)
    factors = tuple(Factor(size, step, step) for size, step in sizes if size > 1)
    return Form(tuple(shape), (Piece(name, 0, 0, factors),))


def joined(forms: Sequence[Form], axis: int) -> Form:
    """Return FORMS end to end along AXIS.

    Raises:
        Unfit: some count bytes and some do not, or they are too many pieces.
    """
    if len({form.width for form in forms}) > 1:
        raise Unfit("bits of different widths are joined")
    boxes, size = [], 0
    for form in forms:
        boxes += [box.moved(axis, size) for box in form.boxes()]
        size += form.shape[axis]
    first = forms[0]
    return first.remade((*first.shape[:axis], size, *first.shape[axis + 1 :]), boxes)
