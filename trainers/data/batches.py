"""Which examples meet in which update: a function of the seed and the position, of nothing else."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from ...converters.values import Array
from ...errors import BadInputError
from .tokens.alike import alike
from .tokens.fitted import Fitted

WINDOW: Final = 16  # batches whose examples are sorted by length together


class Batch(dict[str, Array]):
    """The inputs of one forward pass, by the names that the loss module calls them.

    Attributes:
        rows: examples, the weight of this batch in an accumulated gradient.
        tokens: tokens before padding, or numbers of a series, for throughput.
    """

    def __init__(self, inputs: Mapping[str, Array], rows: int, tokens: int) -> None:
        super().__init__(inputs)
        self.rows, self.tokens = rows, tokens

    @property
    def inputs(self) -> dict[str, Array]:
        """The arrays by name, as the batch itself has them."""
        return self


def narrowed(array: Array) -> Array:
    """Return ARRAY, in float32 where it is in float64, as numpy makes numbers: modules are trained in float32."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


class Dataset(Protocol):
    """Examples by row number, checked when they were read."""

    digest: str  # of the content: a run is resumed on the data it began with
    report: dict[str, int]  # what was found and what was done about it

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the examples ROWS as arrays."""
        ...

    def length(self, row: int) -> int:
        """Return how long an example is; batches of like lengths carry less padding."""
        ...

    def keys(self, row: int) -> tuple[Hashable, ...]:
        """Return what no other example of a batch may share with this one."""
        ...


def leaked(train: Dataset, other: Dataset) -> int:
    """Return how many examples of OTHER share a key, or what ``marks`` says, with one of training."""
    marks, others = (getattr(them, "marks", them.keys) for them in (train, other))
    seen = {mark for row in range(len(train)) for mark in marks(row)}
    return sum(not seen.isdisjoint(others(row)) for row in range(len(other)))


class Order:
    """Batches of row numbers, one endless sequence over all epochs.

    Every epoch is a permutation drawn from ``(seed, epoch)`` by a generator of its own, so that
    nothing else that draws numbers, validation for one, can change it. Rows that share a key
    never meet; the rows that do not fill a last batch are left out of that epoch.

    Args:
        dataset: the examples.
        size: of a batch, the most that there are in one.
        seed: of the permutations.
        group_by_length: build batches of like examples.
        most_tokens: a batch that is padded to more is divided.
        apart: whether rows that share a key stay apart.

    Raises:
        BadInputError: the data cannot fill a single batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        size: int,
        seed: int,
        *,
        group_by_length: bool,
        most_tokens: int | None = None,
        apart: bool = True,
    ) -> None:
        self._keys = dataset.keys if apart else lambda _: ()
        self._dataset, self._size, self._seed = dataset, size, seed
        self._window = size * (WINDOW if group_by_length else 1)
        self._most = most_tokens
        by_width = getattr(dataset, "by_width", hasattr(dataset, "width"))
        self._by_width = group_by_length and by_width and len(dataset) > 0
        width = getattr(dataset, "width", dataset.length)
        rows = range(len(dataset) if self._by_width or most_tokens else 0)
        self._widths = np.array([np.atleast_1d(width(row)) for row in rows])
        divides = self._by_width and Fitted.takes(self._widths, size)
        random = np.random.Generator(np.random.PCG64([seed]))
        self._fitted = Fitted(self._widths, size, random) if divides else None
        self._starts = [0]  # positions at which the epochs begin that were looked at
        self._kept: dict[int, list[list[int]]] = {}  # the batches of the last two of them
        self._lock = threading.Lock()  # threads that make batches ahead look at positions too
        if not self._batches(0):
            raise BadInputError(
                f"{len(dataset)} training examples do not fill a batch of {size} without repeating"
                " a text; give more data or --set batch_size to a smaller one"
            )

    def __getitem__(self, position: int) -> list[int]:
        """Return the rows of the batch at POSITION, counted from 0 over all epochs."""
        with self._lock:
            epoch = self._epoch(position)
            return self._batches(epoch)[position - self._starts[epoch]]

    def epoch(self, position: int) -> int:
        """Return the epoch of the batch at POSITION, counted from 0."""
        with self._lock:
            return self._epoch(position)

    def divided(self, batch: list[int]) -> list[list[int]]:
        """Return BATCH in halves of like rows, halved again until none is padded to more than the most tokens."""
        if self._most is None or len(batch) * self._widths[batch].max(0).sum() <= self._most:
            return [batch]
        half = -(-len(batch) // 2)
        rows = [*map(int, alike(np.array(batch), self._widths, half))]
        halves = (rows[:half], rows[half:])
        return [part for it in halves for part in self.divided(it)] if rows[half:] else [rows]

    def _epoch(self, position: int) -> int:
        while position >= (end := self._starts[-1] + len(self._batches(len(self._starts) - 1))):
            self._starts.append(end)
        return bisect_right(self._starts, position) - 1

    def _batches(self, epoch: int) -> list[list[int]]:
        if epoch not in self._kept:
            while len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            self._kept[epoch] = self._shuffle(epoch)
        return self._kept[epoch]

    def _shuffle(self, epoch: int) -> list[list[int]]:
        generator = np.random.Generator(np.random.PCG64([self._seed, epoch]))
        rows = generator.permutation(len(self._dataset)).tolist()
        grouped = self._window > self._size
        like = self._alike(rows, generator) if grouped else rows
        whole = fill(like, self._size, self._keys)
        batches = [part for batch in whole for part in self.divided(batch)]
        if not grouped and self._most is None:
            return batches
        return [batches[at] for at in generator.permutation(len(batches))]

    def _alike(self, rows: list[int], generator: np.random.Generator) -> list[int]:
        """Return ROWS with like ones together: of one padded length, or in windows by their lengths."""
        if self._by_width:
            whole = len(rows) - len(rows) % self._size  # what is left out is none of the longest
            kept = np.array(rows[:whole] or rows)
            if self._fitted:
                return [*map(int, self._fitted.divided(kept, generator))]
            return [*map(int, alike(kept, self._widths, self._size))]
        windows = (rows[at : at + self._window] for at in range(0, len(rows), self._window))
        return [row for window in windows for row in sorted(window, key=self._dataset.length)]


def fill(
    rows: Iterable[int], size: int, keys: Callable[[int], Iterable[Hashable]]
) -> list[list[int]]:
    """Cut ROWS into batches of SIZE; a row waits for the next one when one of its keys is taken.

    >>> fill([0, 1, 2, 3], 2, keys=lambda row: [row // 2])
    [[0, 2], [1, 3]]
    """
    queue, batches = deque(rows), []
    while len(queue) >= size:
        batch: list[int] = []
        taken: set[Hashable] = set()
        waiting = []
        while queue and len(batch) < size:
            row = queue.popleft()
            if taken.isdisjoint(keys(row)):
                batch.append(row)
                taken.update(keys(row))
            else:
                waiting.append(row)
        if len(batch) < size:
            break
        batches.append(batch)
        queue.extendleft(reversed(waiting))
    return batches
