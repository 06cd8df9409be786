"""A merged weight number by number, where its base and its update are at hand.

16 bits hardly keep a small update: most numbers stay as they are, and those that move do so by a whole
unit in the last place. What a merge of another scale would have stored is known all the same, so a
share is told by the numbers that would be others with it: rounding errs to both sides alike, another
share to one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Final, NamedTuple

import numpy as np

from ....converters.captures.mlprogram.arithmetic import LEAST
from ....converters.common.dtypes import CODE
from ....converters.values import Array, LowRank
from ..candidate_tensor import CLOSE
from ..orders import ranges
from ..sketches.casts import cast, roundoff

BLOCK: Final = 1 << 18  # elements turned into float64 at a time
CHANCE: Final = 1e-6  # that a right merge is called wrong
ERRORS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the scale, that are tried
SOME: Final = 4  # blocks that tell a share

# Whether the base was rounded before it was added to, and how often the update was: after it was
# scaled, and before that too.
Way = tuple[bool, int]


class Rows(NamedTuple):
    """Some rows of a matrix: of the candidate, and base and due update; all in float64."""

    kept: Array
    base: Array
    due: Array


@dataclass(frozen=True)
class Merge:
    """A candidate tensor beside the base and the update that it should be the sum of.

    Attributes:
        kept: the candidate, in the shape of the update.
        base: the reference, likewise.
        update: what is due.
        u: the coarser unit roundoff of the two.
    """

    kept: Array
    base: Array
    update: LowRank
    u: float

    @property
    def tolerance(self) -> float:
        """How far a right merge may be from the scale: its factors may have been rounded too."""
        return max(0.01, CLOSE * self.u)

    def matrices(self) -> Iterator[tuple[int, ...]]:
        """Yield the index of each matrix that is updated."""
        yield from np.ndindex(*self.update.lead)

    def rows(self, at: tuple[int, ...]) -> Iterator[Rows]:
        """Yield the matrix AT, some rows at a time."""
        update = self.update.part(at) if at else self.update
        count, width = update.shape
        step = max(1, BLOCK // max(width, 1))
        for start in range(0, count, step):
            block = slice(start, start + step)
            part = update.rows(block)
            kept, base = (it[at][block].astype(np.float64) for it in (self.kept, self.base))
            due = part.delta() if part.magnitude is None else part.applied_to(base) - base
            yield Rows(kept, base, due)

    def everywhere(self) -> Iterator[Rows]:
        """Yield all rows of all matrices, some at a time."""
        for at in self.matrices():
            yield from self.rows(at)

    def stored(self, rows: Rows, share: float, way: Way) -> Array:
        """Return what a merge of SHARE of the update stores, in float64."""
        base = self.rounded(rows.base) if way[0] else rows.base
        due, scale = share * rows.due, self.update.scale
        if way[1] > 1 and scale:
            due = self.rounded(due / scale) * scale
        return self.rounded(base + (self.rounded(due) if way[1] else due))

    def rounded(self, array: Array) -> Array:
        """Return ARRAY rounded to the candidate's dtype, in float64."""
        return cast(array, CODE[self.kept.dtype]).astype(np.float64)

    @cached_property
    def best(self) -> tuple[int, Way]:
        """How many numbers differ from what a merge stores, and the way of merging where fewest do."""
        early = (False,) if self.kept.dtype == self.base.dtype else (False, True)
        found: list[tuple[int, Way]] = []
        for way in product(early, range(3)):
            found.append((sum(self.others(rows, way) for rows in self.everywhere()), way))
            if not found[-1][0]:
                break
        return min(found)

    def others(self, rows: Rows, way: Way) -> int:
        """Return how many numbers of ROWS differ from what a merge stores."""
        return int(np.count_nonzero(self.stored(rows, 1, way) != rows.kept))

    def by_number(self) -> float | None:
        """Return the least error of the scale that any single number shows, ``None`` where one is wrong now.

        A right number is base + update but for roundings of these.
        """
        shown = math.inf
        for rows in self.everywhere():
            if self.off(rows).any():
                return None
            limit, due = self.allowed(rows), np.abs(rows.due)
            own = due > 0
            shown = min(shown, float((2 * limit[own] / due[own]).min(initial=math.inf)))
        return shown

    def off(self, rows: Rows) -> Array:
        """Say which numbers of ROWS are not base + update but for roundings of these."""
        return np.asarray(~(np.abs(rows.kept - rows.base - rows.due) <= self.allowed(rows)))

    def allowed(self, rows: Rows) -> Array:
        """Return how far numbers of ROWS may be from base + update.

        An update's own numbers are sums, in which larger ones may cancel. In 16 bits sums are formed in
        32 or more, and one rounding of base, of update and of both is all; but DoRA's norms are rounded
        too.
        """
        due = np.abs(rows.due)
        sums = CLOSE * self.u * (due + np.sqrt(np.mean(np.square(due))))
        if self.kept.dtype.itemsize > 2 or self.update.magnitude is not None:
            return np.asarray(sums + CLOSE * self.u * np.abs(rows.base))
        wider = self.base.dtype.itemsize > self.kept.dtype.itemsize
        once = self.half(rows.kept) + (self.half(rows.base) if wider else 0.0)
        return np.asarray(sums + once + (CLOSE * LEAST if self.kept.dtype == np.float16 else 0.0))

    def half(self, array: Array) -> Array:
        """Return half the distance of neighbours around each number of ARRAY, in the candidate's dtype."""
        return np.where(
            array == 0, 0.0, np.ldexp(roundoff(CODE[self.kept.dtype]), np.frexp(array)[1] - 1)
        )

    def share(self) -> float | None:
        """Return the share of the update by least squares, of what the dtype leaves of it, if anything."""
        way, found, whole = self.best[1], 0.0, 0.0
        for rows in self.everywhere():
            before = self.stored(rows, 0, way)
            step = self.stored(rows, 1, way) - before
            found += float(np.vdot(rows.kept - before, step))
            whole += float(np.vdot(step, step))
        return found / whole if whole else None

    @cached_property
    def limit(self) -> float:
        """How many standard deviations of it a sum of random signs is never off, for all sums that are made.

        It is off by t with a probability of at most ``2 exp(-t^2 / 2)`` (Hoeffding 1963).
        """
        sums = 1 + math.prod(self.update.lead) * (1 + sum(self.update.shape[-2:]))
        return math.sqrt(2 * math.log(2 * sums / CHANCE))

    def signs(self, rows: Rows, side: int) -> Array:
        """Return 1 where ROWS have more of the update than may be, on SIDE 1, or less, on SIDE -1; else -1 or 0.

        Norms that DoRA divides by are off for a whole row alike, so each of its rows counts once.
        """
        most = self.stored(rows, 1 + side * self.tolerance, self.best[1])
        found = side * np.sign((rows.kept - most) * np.sign(rows.due))
        once = self.update.magnitude is not None
        return np.asarray(np.sign(found.sum(axis=1, keepdims=True)) if once else found)

    def wrong(self, side: int) -> list[str]:
        """Name what has more of the update than may be, on SIDE 1, or less, on SIDE -1: all, or parts."""
        parts, whole = [], np.zeros(2)
        for at in self.matrices():
            rows, columns = sums_of(self.signs(it, side) for it in self.rows(at))
            whole += rows.sum(axis=1)
            place = f" of matrix {', '.join(map(str, at))}" if at else ""
            if at and self.beyond(rows.sum(axis=1)):
                parts.append(f"all{place}")
                continue
            for words, sums in (("rows", rows), ("columns", columns)):
                found = np.flatnonzero(self.beyond(sums))
                parts += [f"{words} {ranges(found)}{place}"] if len(found) else []
        return ["all"] if self.beyond(whole) else parts

    def beyond(self, sums: Array) -> Array:
        """Say which SUMS of signs, with the counts of these, are larger than chance makes them."""
        return np.asarray(sums[0] > self.limit * np.sqrt(np.maximum(sums[1], 1)))

    def by_signs(self) -> float:
        """Return the least error of the scale, of those tried, that all numbers show; infinity for none."""
        for error in (it for it in ERRORS if it > self.tolerance):
            count = 0.0
            for rows in self.everywhere():
                other = rows._replace(kept=self.stored(rows, 1 + error, self.best[1]))
                count += float(np.abs(self.signs(other, 1)).sum())
                if count >= self.limit**2:
                    return error
        return math.inf

    def scale(self) -> float:
        """Return the share with which as many numbers of some rows are above what is stored as below."""
        low, high = -1.5, 3.5
        for _ in range(16):
            share, total = (low + high) / 2, 0.0
            for rows in islice(self.everywhere(), SOME):
                over = rows.kept - self.stored(rows, share, self.best[1])
                total += float((np.sign(over) * np.sign(rows.due)).sum())
            low, high = (share, high) if total > 0 else (low, share)
        return (low + high) / 2


def sums_of(blocks: Iterable[Array]) -> tuple[Array, Array]:
    """Return of the signs in BLOCKS of a matrix the sums and the counts, by row and by column."""
    rows, columns = [], np.zeros(0)
    for signs in blocks:
        both = np.stack([signs, np.abs(signs)])
        rows.append(both.sum(axis=2))
        columns = both.sum(axis=1) + (columns if columns.size else 0)
    return np.concatenate(rows, axis=1), columns
