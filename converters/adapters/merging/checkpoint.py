"""A checkpoint with updates merged into it as it is read: no weight is ever held whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from threading import local

import numpy as np

from ...checkpoints import Checkpoint
from ...checkpoints.derived import Derived
from ...checkpoints.formats.ranges import Cursor, chunks
from ...common.dtypes import NUMPY
from ...quantization.workspace import Room
from ...values import Array, LowRank
from .survival import Survival
from .weight import Accumulate, Merger


class Merging(Derived):
    """CHECKPOINT with UPDATES, by tensor name, in its weights; every one is measured on its way.

    A weight has the same bytes however it is read: whole, or in pieces in any order.

    Raises:
        MismatchError: an update is of another shape than its weight.
        UnsupportedError: a weight is not floating point.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        updates: Mapping[str, LowRank],
        *,
        accumulate: Accumulate = "float64",
    ) -> None:
        super().__init__(checkpoint, checkpoint.headers)
        self._recent = local()  # the last block of each thread: the next piece may lie in it too
        self._mergers = {
            name: Merger(self.headers[name], update, accumulate) for name, update in updates.items()
        }

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own, merged if an update is due."""
        return self._gathered(name) if name in self._mergers else self._own.read(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        stop = self.headers[name].nbytes if stop is None else stop
        if name not in self._mergers or start >= stop:
            yield from self._own.stream(name, start, stop)
            return
        for first, block in self._blocks(name, start, stop):
            yield from chunks(block, max(0, start - first), stop - first)

    def survival(self) -> dict[str, Survival]:
        """Return how much of each update is in its weight; what nobody read is merged for that."""
        for name, merger in self._mergers.items():
            if len(merger.sums) < merger.count:
                for _ in self._blocks(name, 0, self.headers[name].nbytes):
                    pass
        return {name: self._mergers[name].survival() for name in sorted(self._mergers)}

    def _blocks(self, name: str, start: int, stop: int) -> Iterator[tuple[int, Array]]:
        """Yield the merged blocks that the bytes START to STOP lie in, and where each begins."""
        merger, header = self._mergers[name], self.headers[name]
        width = header.nbytes // prod(header.shape[:-1])
        first, last = (merger.number(at // width) for at in (start, stop - 1))
        kept = getattr(self._recent, "block", None)
        if kept and kept[:2] == (name, first):
            yield merger.rows(first).start * width, kept[2]
            first += 1
        if first > last:
            return
        room, begin = Room(), merger.rows(first).start * width
        source = Cursor(self._own.stream(name, begin, merger.rows(last).stop * width))
        for number in range(first, last + 1):
            rows = merger.rows(number)
            shape = rows.stop - rows.start, header.shape[-1]
            base = room("base", shape, NUMPY[header.dtype])
            _fill(base, source)
            merged = merger.merge(number, base, room)
            self._recent.block = name, number, merged
            yield rows.start * width, merged


def _fill(array: Array, source: Cursor) -> None:
    """Fill ARRAY with the next bytes of SOURCE."""
    data, at = array.reshape(-1).view(np.uint8), 0
    for view in source.read(source.position, source.position + array.nbytes):
        data[at : at + view.nbytes] = np.frombuffer(view, np.uint8)
        at += view.nbytes
