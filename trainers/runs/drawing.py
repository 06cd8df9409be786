"""The micro-batches of the next update, made ahead of it: the same ones whatever was made before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ..config import TrainConfig
from ..data.ahead import Ahead
from ..data.batches import Batch, Dataset, Order

WHOLE: Final = slice(None, None, 1)


class Drawn(NamedTuple):
    """The micro-batches of one update.

    Attributes:
        batches: in order.
        size: examples in each, those of other processes too.
        position: behind the last of them, in examples.
        waited: seconds for them.
    """

    batches: list[Batch]
    size: int
    position: int
    waited: float


class Draws:
    """Draws the examples of DATASET in ORDER, whose batches have the most examples that CONFIG allows.

    Of each micro-batch only the part OWN, which is this process's.
    """

    def __init__(
        self, dataset: Dataset, order: Order, config: TrainConfig, own: slice = WHOLE
    ) -> None:
        self._dataset, self._order, self._config, self._own = dataset, order, config, own
        self._size = 0
        self._ahead: Ahead[Batch] | None = None

    def __enter__(self) -> Draws:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Make nothing more."""
        if self._ahead:
            self._ahead.close()

    def next(self, position: int, size: int) -> Drawn:
        """Return the micro-batches of the update at POSITION, of at most SIZE examples each."""
        size = aligned(position, size, self._config.largest_batch)
        ahead = self._made_of(size)
        before, first = ahead.waited, position // size
        count = self._config.accumulation
        batches = [ahead.get(first + part) for part in range(count)]
        return Drawn(batches, size, position + count * size, ahead.waited - before)

    def _made_of(self, size: int) -> Ahead[Batch]:
        """Return what makes batches of SIZE ahead."""
        if self._ahead is None or size != self._size:
            if self._ahead:
                self._ahead.close()
            prefetch = self._config.prefetch
            self._size = size
            self._ahead = Ahead(self._maker(size), prefetch.workers, prefetch.depth)
        return self._ahead

    def _maker(self, size: int) -> Callable[[int], Batch]:
        largest = self._config.largest_batch

        def make(number: int) -> Batch:
            batch, part = divmod(number * size, largest)
            return self._dataset.batch(self._order[batch][part : part + size][self._own])

        return make


def aligned(position: int, size: int, largest: int) -> int:
    """Return the size of the micro-batch at POSITION: at most SIZE, and a part of one whole batch.

    The order of the data is made of batches of LARGEST examples, no two alike; a smaller batch is a
    half, a quarter, ... of one of them.

    >>> [aligned(position, 64, 64) for position in (0, 16, 32, 64)]
    [64, 16, 32, 64]
    """
    while (position % largest) % size:
        size //= 2
    return size
