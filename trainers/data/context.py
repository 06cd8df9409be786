"""What a reader of data may need besides its section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Share(NamedTuple):
    """Which rows of a file belong to a split: a share that is drawn by the seed, or all the others."""

    fraction: float
    seed: int
    held_out: bool

    def of(self, count: int) -> list[int]:
        """Return the numbers of the rows of this split, of COUNT in all, in their order.

        >>> Share(0.25, 0, True).of(4), Share(0.25, 0, False).of(4)
        ([2], [0, 1, 3])
        """
        held = max(1, round(count * self.fraction))
        order = np.random.Generator(np.random.PCG64(self.seed)).permutation(count)
        return sorted((order[:held] if self.held_out else order[held:]).tolist())


@dataclass(frozen=True)
class Context:
    """What a reader may need besides its section.

    Attributes:
        tokenizer: the directory of the tokenizer, if there is one.
        vocabulary: how many token ids the model has rows for; ``None`` where it does not say.
        positions: how many positions it has; likewise.
        share: which rows of the file are of the split that is read; ``None`` are all.
        train: what was read for training, as another split is read.
        writes: whether the document of a pair is what a decoder writes.
        orders: names for the arrays of an example that is a tuple, by how many they are.
    """

    tokenizer: Path | None = None
    vocabulary: int | None = None
    positions: int | None = None
    share: Share | None = None
    train: Any = None
    writes: bool = False
    orders: Sequence[Sequence[str]] = ()
