"""Batches of pairs with less padding: both lengths of a batch are made smaller while every pair has one that it fits in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....converters.values import Array
from .alike import FEW, alike

MOST: Final = (
    100  # batches of an epoch that are looked at; more of them are alike enough as they are
)
TRIES: Final = 16  # a batch: one length is made larger, and others smaller for it
AGAIN: Final = 1  # the same in every epoch, at least
ENOUGH: Final = 1.003  # of the padding found first; what is not worse need not be better
NEAR: Final = 16  # batches whose lengths are made smaller then
FURTHER: Final = 10  # padded lengths by which one is made larger at most
MIXED: Final = 100  # exchanges of pairs a batch
Side = tuple[int, int]  # a batch, and which of its two lengths


class Fitted:
    """Divides rows of two fields into batches: the lengths of a run are searched for once, and mended every epoch.

    Args:
        widths: padded lengths of all rows, shape ``(rows, 2)``.
        size: rows of a batch.
        generator: chooses what is tried.
    """

    def __init__(self, widths: Array, size: int, generator: np.random.Generator) -> None:
        found = [np.unique(field, return_inverse=True) for field in widths.T]
        self._widths, self._size = widths, size
        self._grid = [values for values, _ in found]
        self._places = np.stack([places for _, places in found], 1)
        rows = generator.permutation(len(widths))[: len(widths) // size * size]
        begun = self._alike(rows).search(generator)
        self._batches, self._enough = begun.batches, begun.padded * ENOUGH

    def divided(self, rows: Array, generator: np.random.Generator) -> Array:
        """Return ROWS, as many as fill the batches, so that those of a batch are behind one another.

        They are drawn by GENERATOR, among all divisions that have as little padding.
        """
        lengths, like = self._lengths(rows, self._batches.copy()), self._alike(rows)
        if not lengths.widen() or lengths.padded > like.padded:
            lengths = like
        lengths.search(generator, least=AGAIN, enough=self._enough)
        batches = mixed(rows[lengths.divided(generator)], self._widths, generator)
        total = self._widths[batches].sum(2)  # parts of a batch are alike too
        return np.take_along_axis(batches, total.argsort(1, kind="stable"), 1).ravel()

    def _alike(self, rows: Array) -> Lengths:
        """Return the lengths of batches of like ROWS."""
        like = self._places[alike(rows, self._widths, self._size)]
        return self._lengths(rows, like.reshape(-1, self._size, 2).max(1))

    def _lengths(self, rows: Array, batches: Array) -> Lengths:
        return Lengths(self._places[rows], batches, self._grid)

    @staticmethod
    def takes(widths: Array, size: int) -> bool:
        """Return whether batches of SIZE rows of WIDTHS are divided here: of two fields, and as many as gain by it."""
        return widths.ndim == 2 and widths.shape[1] == 2 and FEW < len(widths) // size <= MOST


class Lengths:
    """The two padded lengths of each batch, by their places among all, and whether the rows fit in them.

    Args:
        rows: places of the lengths of every row, shape ``(batches * size, 2)``.
        batches: the same of every batch, shape ``(batches, 2)``.
        grid: ascending padded lengths of both fields.
    """

    def __init__(self, rows: Array, batches: Array, grid: Sequence[Array]) -> None:
        self.batches = batches
        self._rows, self._grid, self._size = rows, grid, len(rows) // len(batches)
        self._wanted = self._counted(rows).cumsum(1)

    @property
    def padded(self) -> int:
        """Tokens of one row of every batch, padding included."""
        return int(sum(self._grid[field][self.batches[:, field]].sum() for field in (0, 1)))

    def search(
        self, generator: np.random.Generator, *, least: int = TRIES, enough: float = 0
    ) -> Lengths:
        """Make lengths smaller; then make one larger, some near it smaller, and keep what is no worse.

        Args:
            generator: chooses what is tried.
            least: times that it is tried, a batch.
            enough: tokens from which on no more is tried, beyond those times.
        """
        count = len(self.batches)
        self._shrink(generator.permutation(count))
        best = self.padded
        tried = generator.integers((count, 2), size=(TRIES * count, 2))
        for done, (number, field) in enumerate(tried.tolist()):
            if done >= least * count and best <= enough:
                break
            kept = self.batches.copy()
            further = kept[number, field] + generator.integers(1, FURTHER + 1)
            self.batches[number, field] = min(further, len(self._grid[field]) - 1)
            away = np.abs(kept - kept[number]).sum(1) + 3 * generator.random(count)
            self._shrink(away.argsort()[:NEAR])
            if (padded := self.padded) > best:
                self.batches = kept
            else:
                best = padded
        return self

    def widen(self) -> bool:
        """Make lengths larger, each time what places most of the rows that do not fit; return whether all do then."""
        by = 1
        while (without := self._left(self._offered()[:, None])[1][0]) > 0:
            room = np.array([len(values) for values in self._grid]) - self.batches > by
            sides = [*map(tuple, np.argwhere(room))]
            if not sides:
                return False  # some are too long for a batch in both
            short = self._left(self._moved(sides, by))[1]
            best = min(range(len(sides)), key=lambda at: (short[at], self._step(sides[at], by)))
            if short[best] < without:
                self.batches[sides[best]] += by
            by = 1 if short[best] < without else by + 1
        return True

    def _shrink(self, numbers: Array) -> None:
        """Make lengths of the batches NUMBERS smaller, that first which saves most, while all rows still fit."""
        while True:
            sides = [(at, it) for at in numbers for it in (0, 1) if self.batches[at, it]]
            short = self._left(self._moved(sides, -1))[1]
            fits = [side for side, rows in zip(sides, short, strict=True) if not rows]
            if not fits:
                return
            self.batches[min(fits, key=lambda side: self._step(side, -1))] -= 1

    def _step(self, side: Side, by: int) -> int:
        """Return the tokens by which a row of SIDE is padded to more, if that is changed BY so many places."""
        values, place = self._grid[side[1]], self.batches[side[0], side[1]]
        return int(values[place + by] - values[place])

    def _moved(self, sides: Sequence[Side], by: int) -> Array:
        """Return the places of batches with one of SIDES changed BY one: shape ``(first lengths, sides, second)``.

        The last axis counts those up to a second length.
        """
        places = np.repeat(self._offered()[:, None], len(sides), 1)
        upward = self._size * np.tri(places.shape[2], dtype=np.int64).T
        for number, (at, field) in enumerate(sides):
            first, second = self.batches[at]
            places[first, number] -= upward[second]
            places[first + by * (field == 0), number] += upward[second + by * (field == 1)]
        return places

    def _offered(self) -> Array:
        """Return the places that batches have, by their first length and up to a second one."""
        return self._size * self._counted(self.batches).cumsum(1)

    def _left(self, places: Array) -> tuple[list[Array], Array]:
        """Return how many of PLACES are left at each first length, and how many rows have none.

        From the longest first length on, rows take the places that are shortest in the second: what is left
        then serves every row that another choice would have left a place for.

        Args:
            places: up to a second length, shape ``(first lengths, tries, second lengths)``.

        Returns:
            Those left behind each first length, the last one first, of shape ``(tries, second lengths)``;
            and the rows of each try that no place is left for.
        """
        left = [np.zeros_like(places[0])]
        without = np.zeros(places.shape[1], np.int64)
        for wanted, opened in zip(self._wanted[::-1], places[::-1], strict=True):
            short = wanted - left[-1] - opened
            least = np.minimum(np.minimum.accumulate(short, 1), 0)
            without += short[:, -1] - least[:, -1]
            left.append(-least)
        return left, without

    def divided(self, generator: np.random.Generator) -> Array:
        """Return the numbers of the rows, batch by batch, as they fit; int64, shape ``(batches, size)``."""
        offered = self._offered()[:, None]
        left, _ = self._left(offered)
        taken = [
            np.diff(before + opened - after, prepend=0)[0]
            for before, opened, after in zip(left, offered[::-1], left[1:], strict=False)
        ]
        places = [np.repeat(np.arange(len(them)), them) for them in taken]
        drawn = generator.permutation(len(self._rows))
        first, second = self._rows[drawn].T
        ordered = drawn[np.lexsort((second, -first))]
        return ordered[np.concatenate(places).argsort(kind="stable")].reshape(-1, self._size)

    def _counted(self, places: Array) -> Array:
        """Return how many of PLACES, shape ``(any, 2)``, are at each of both lengths."""
        counts = np.zeros([len(values) for values in self._grid], np.int64)
        np.add.at(counts, tuple(places.T), 1)
        return counts


def mixed(batches: Array, widths: Array, generator: np.random.Generator) -> Array:
    """Return BATCHES of rows, shape ``(batches, size)``, in which rows that fit in both of two are exchanged."""
    batches = batches.copy()
    longest = widths[batches].max(1)
    for one, other in generator.integers(len(batches), size=(MIXED * len(batches), 2)):
        there = (widths[batches[one]] <= longest[other]).all(1).nonzero()[0]
        here = (widths[batches[other]] <= longest[one]).all(1).nonzero()[0]
        count = generator.integers(min(len(there), len(here)) + 1)
        if one == other or not count:
            continue
        ours, theirs = (generator.choice(them, count, replace=False) for them in (there, here))
        batches[one, ours], batches[other, theirs] = batches[other, theirs], batches[one, ours]
    return batches
