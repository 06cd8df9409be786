"""Tokens that are hidden, for masked language models to find."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from ....converters.values import Array
from .forms import IGNORED

MASKED: Final = 0.8  # of the tokens to be found: hidden behind the mask
CHANGED: Final = 0.1  # replaced by another token; the others stay (Devlin et al. 2019, section 3.1)


class Hiding(NamedTuple):
    """Which tokens are hidden: drawn by the seed and the number of the text, in every epoch the same.

    Attributes:
        share: of the tokens of a text that are no special ones; at least one.
        mask: the id that hides.
        size: how many ids there are.
        special: ids that are never hidden.
        seed: of the draws.
    """

    share: float
    mask: int
    size: int
    special: frozenset[int]
    seed: int

    def of(self, number: int, ids: Array) -> tuple[Array, Array]:
        """Return the IDS of text NUMBER with some hidden, and labels: what was hidden, -100 elsewhere."""
        generator = np.random.Generator(np.random.PCG64([self.seed, number]))
        order, how = generator.random(len(ids)), generator.random(len(ids))
        others = generator.integers(self.size, size=len(ids))
        order[np.isin(ids, list(self.special))] = 2  # behind every draw
        chosen = (order < self.share) | (order == order.min(initial=1))
        replaced = np.where(how < MASKED, self.mask, np.where(how < MASKED + CHANGED, others, ids))
        return np.where(chosen, replaced, ids), np.where(chosen, ids, IGNORED)
